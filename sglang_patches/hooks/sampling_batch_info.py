"""Hooks on ``SamplingBatchInfo``: gives every request a seed, and counts a replayed request's earlier tokens.

SGLang fills the tensor of seeds only under ``--enable-deterministic-inference``, and otherwise silently ignores a
request's seed.
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
    """Fill ``sampling_seed`` (int64, ``[batch]``), and tell the sampler which truncations the requests need."""
    from sglang.srt.runtime_context import get_exec

    if get_exec().kernel.sampling_backend != BACKEND:
        return info
    if info.sampling_seed is None:
        seeds = torch.tensor([seed_of(req) for req in batch.reqs], dtype=torch.int64)
        info.sampling_seed = seeds.to(info.device, non_blocking=True)
    # The sampler always applies a top-k within the head. Only a larger one costs time.
    head = HiveServerArgs.from_environment().head_size
    info.need_top_k_sampling = any(head < req.sampling_params.top_k < info.vocab_size for req in batch.reqs)
    for row, req in enumerate(batch.reqs):
        if len(req.output_ids) and is_penalised(req):
            _count_history(info.penalizer_orchestrator, row, _history(req, batch.enable_overlap))
    return info


def after_copy_for_forward(copy: Any, self: Any) -> Any:
    """Move the constraints of distinct samples to the copy; they apply to one step."""
    if hasattr(self, CONSTRAINTS_ATTRIBUTE):
        setattr(copy, CONSTRAINTS_ATTRIBUTE, getattr(self, CONSTRAINTS_ATTRIBUTE))
        delattr(self, CONSTRAINTS_ATTRIBUTE)
    return copy


def _history(req: Any, overlap: bool) -> list[int]:
    """Return the tokens that penalties have counted when an uninterrupted request draws its next token.

    Overlap scheduling counts before the last drawn token is known. It is one token behind, and begins with the
    prompt's last token.
    """
    output = list(req.output_ids)
    return [req.origin_input_ids[-1], *output[:-1]] if overlap else output


def _count_history(orchestrator: BatchedPenalizerOrchestrator, row: int, tokens: Sequence[int]) -> None:
    """Add a request's earlier tokens to the penalties. Upstream starts every batch at zero, as if nothing had been
    generated, which is wrong for replayed and for retracted requests.
    """
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
