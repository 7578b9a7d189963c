"""Hooks on ``ScheduleBatch``: what a replayed request reports as cached, and what penalties count."""

from __future__ import annotations

from typing import Any

import torch


def after_prepare_for_extend(_result: None, self: Any, *_args: Any, **_kwargs: Any) -> None:
    """A replayed request enters with output tokens whose KV another request left in the radix cache.

    Upstream counts those as cached prompt tokens, and clients compute prompt minus cached.
    """
    for req in self.reqs:
        attached = getattr(req, "hive", None)
        if attached is not None and attached.arrived_with:
            req.cached_tokens = min(req.cached_tokens, len(req.origin_input_ids))


def cumulate_penalty_output_tokens(self: Any) -> None:
    """Show each request's latest token to the penalties, before a decode step.

    Overlap scheduling prepares a step before it knows the token drawn last, and so runs one token behind, beginning
    with the prompt's last one.  Upstream takes the latest token that it knows of: where a prefill came in between
    that is the one after, and the one before is never counted.  Here it is the same token whatever else runs.
    """
    behind = 2 if self.enable_overlap else 1
    tokens = []
    for req, length in zip(self.reqs, self.seq_lens_cpu.tolist(), strict=True):
        # All but the token drawn last have their KV.
        index = length + 1 - len(req.origin_input_ids) - behind
        tokens.append(req.output_ids[index] if index >= 0 else req.origin_input_ids[-1])
    drawn = torch.tensor(tokens, dtype=torch.int64).to(self.device, non_blocking=True)
    self.sampling_info.penalizer_orchestrator.cumulate_output_tokens(drawn)
