"""New requests of few tokens enter the running decode batch in one step with it.

SGLang runs a prefill alone, and every request that is being decoded waits for it.  A prefill of a few tokens goes
through the model as decode rows (:mod:`sglang_patches.forward.decode_rows`), and the rows of the running batch are
decode rows as well: together they are one step, of the time that the running batch would have taken anyway.  The
batch is the one that upstream builds under ``--enable-mixed-chunk``.
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
    """Put the running batch into a prefill batch where both fit into one decode step.

    Args:
        rows: what fits.
        prefill: is about to run; ``prepare_for_extend`` is done.
        running: the decode batch.

    Returns:
        The batch to run and the batch that stays: ``prefill`` and ``running`` where they are not mixed.
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
    if not rows.have_room([*prefill.prefix_lens, *prefixes], [*prefill.extend_lens, *(1 for _ in prefixes)]):
        return prefill, running
    # Upstream's own check, which retracts where there is no room, comes with the next decode step.
    if not running.check_decode_mem():
        return prefill, running
    running.prepare_for_decode()
    own = list(prefill.prefix_lens)
    prefill.mix_with_running(running)
    # Upstream counts the output tokens that it has seen, which are one fewer than there are while a step is in
    # flight; a request that has just joined after a replay has none in flight.
    prefill.prefix_lens = own + prefixes
    prefill.decoding_reqs = running.reqs
    return prefill, ScheduleBatch(reqs=[], batch_is_full=full)


def _plain(batch: ScheduleBatch) -> bool:
    """Whether a batch has nothing of which a decode step knows nothing."""
    return (
        batch.seq_lens_cpu is not None
        and not batch.return_logprob
        and not batch.return_hidden_states
        and not batch.is_prefill_only
        and batch.input_embeds is None
        and not any(image is not None for image in batch.multimodal_inputs or ())
    )
