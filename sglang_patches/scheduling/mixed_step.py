"""Short prefills enter the running decode batch and run in one step with it.

SGLang runs a prefill alone, and every decoding request waits for it.  A prefill of few tokens can run as decode rows
(:mod:`sglang_patches.forward.decode_rows`), like the rows of the running batch.  Together they form one step, which
takes as long as the running batch alone.  The batch is the one that upstream builds under ``--enable-mixed-chunk``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

    from sglang_patches.forward.decode_rows import DecodeRows


def mix(
    scheduler: Scheduler, rows: DecodeRows, prefill: ScheduleBatch, running: ScheduleBatch
) -> tuple[ScheduleBatch, ScheduleBatch]:
    """Merge the running batch into a prefill batch if both fit into one decode step.

    Args:
        rows: decides what fits.
        prefill: the batch that is about to run, after ``prepare_for_extend``.
        running: the decode batch.

    Returns:
        The batch to run and the remaining decode batch; ``prefill`` and ``running`` if they are not merged.
    """
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    if scheduler.chunked_req is not None or not (_plain(prefill) and _plain(running)):
        return prefill, running
    before = running.batch_size()
    running.filter_batch()
    full = running.batch_is_full and running.batch_size() == before
    running.batch_is_full = full
    if running.is_empty():
        return prefill, running
    prefixes = running.seq_lens_cpu.tolist()
    if not rows.lengths_fit(
        [*prefill.prefix_lens, *prefixes], [*prefill.extend_lens, *(1 for _ in prefixes)]
    ):
        return prefill, running
    # The next decode step runs upstream's own check, which retracts requests if the pool is full.
    if not running.check_decode_mem():
        return prefill, running
    running.prepare_for_decode()
    own = list(prefill.prefix_lens)
    prefill.mix_with_running(running)
    # Upstream counts the output tokens that it has processed: one fewer than exist while a step is in flight. A
    # request that has just joined after a replay has none in flight.
    prefill.prefix_lens = own + prefixes
    prefill.decoding_reqs = running.reqs
    return prefill, ScheduleBatch(reqs=[], batch_is_full=full)


def _plain(batch: ScheduleBatch) -> bool:
    """Whether a batch uses only features that a decode step supports."""
    return (
        batch.seq_lens_cpu is not None
        and not batch.return_logprob
        and not batch.return_hidden_states
        and not batch.is_prefill_only
        and batch.input_embeds is None
        and not any(image is not None for image in batch.multimodal_inputs or ())
    )
