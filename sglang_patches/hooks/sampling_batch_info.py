"""Hooks on ``SamplingBatchInfo``: every request has a seed, and what a replayed request did before the batch counts.

SGLang builds the tensor of seeds only under ``--enable-deterministic-inference`` and ignores a request's seed
without a word otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hive.server.flags.server_args import HiveServerArgs
from sglang_patches.forward.sampler import BACKEND, CONSTRAINTS_ATTRIBUTE
from sglang_patches.requests.request_state import is_penalised, seed_of

if TYPE_CHECKING:
    from sglang.srt.sampling.penaltylib import BatchedPenalizerOrchestrator


def after_from_schedule_batch(info: Any, _cls: type, batch: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Fill ``sampling_seed`` (int64, ``[batch]``), and set up what the sampler needs to know of the requests."""
    from sglang.srt.runtime_context import get_exec

    if get_exec().kernel.sampling_backend != BACKEND:
        return info
    if info.sampling_seed is None:
        seeds = torch.tensor([seed_of(req) for req in batch.reqs], dtype=torch.int64)
        info.sampling_seed = seeds.to(info.device, non_blocking=True)
    # The sampler honours a top-k that ends inside the head anyway; what costs it time is one that does not.
    head = HiveServerArgs.from_environment().head_size
    info.need_top_k_sampling = any(head < req.sampling_params.top_k < info.vocab_size for req in batch.reqs)
    for row, req in enumerate(batch.reqs):
        if len(req.output_ids) and is_penalised(req):
            _count_history(info.penalizer_orchestrator, row, _history(req, batch.enable_overlap))
    return info


def after_copy_for_forward(copy: Any, self: Any) -> Any:
    """Hand the constraints of distinct samples on; they hold for one step."""
    if hasattr(self, CONSTRAINTS_ATTRIBUTE):
        setattr(copy, CONSTRAINTS_ATTRIBUTE, getattr(self, CONSTRAINTS_ATTRIBUTE))
        delattr(self, CONSTRAINTS_ATTRIBUTE)
    return copy


def _history(req: Any, overlap: bool) -> list[int]:
    """The tokens that penalties have counted when a request that was never interrupted draws its next one.

    Overlap scheduling counts before it knows the token drawn last: it runs one behind, and begins with the prompt's
    last token.
    """
    output = list(req.output_ids)
    return [req.origin_input_ids[-1], *output[:-1]] if overlap else output


def _count_history(orchestrator: BatchedPenalizerOrchestrator, row: int, tokens: Sequence[int]) -> None:
    """Upstream starts every batch at zero, as if nothing had been generated: true for neither a replayed request nor
    a retracted one."""
    from sglang.srt.sampling import penaltylib

    drawn = torch.tensor(tokens, dtype=torch.int64).to(orchestrator.device, non_blocking=True)
    for kind, penalizer in orchestrator.penalizers.items():
        if not penalizer.is_prepared():
            continue
        if kind is penaltylib.BatchedFrequencyPenalizer:
            weight = penalizer.frequency_penalties[row]
            penalizer.cumulated_frequency_penalties[row].scatter_add_(0, drawn, weight.expand(len(tokens)))
        elif kind is penaltylib.BatchedPresencePenalizer:
            weight = penalizer.presence_penalties[row]
            penalizer.cumulated_presence_penalties[row].scatter_(0, drawn, weight.expand(len(tokens)))
        elif kind is penaltylib.BatchedRepetitionPenalizer:
            weight = penalizer.repetition_penalties[row]
            penalizer.cumulated_repetition_penalties[row].scatter_(0, drawn, weight.expand(len(tokens)))
        elif kind is penaltylib.BatchedMinNewTokensPenalizer:
            penalizer.len_output_tokens[row] += len(tokens)
