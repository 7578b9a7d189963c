"""Hooks on ``ScheduleBatch`` and its requests: the reported cached tokens of replayed requests, which tokens penalties
count, and answers whose end the grammar dictates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sglang_patches.scheduling.forced_tokens import finish_if_forced


def after_prepare_for_extend(_result: None, self: Any, *_args: Any, **_kwargs: Any) -> None:
    """Limit ``cached_tokens`` of replayed requests to their prompts.

    A replayed request enters with output tokens whose KV is in the radix cache.  Upstream counts those as cached
    prompt tokens, but clients compute prompt minus cached.
    """
    for req in self.reqs:
        attached = getattr(req, "hive", None)
        if attached is not None and attached.arrived_with:
            req.cached_tokens = min(req.cached_tokens, len(req.origin_input_ids))


def cumulate_penalty_output_tokens(self: Any) -> None:
    """Add each request's latest token to the penalties, before a decode step.

    Overlap scheduling prepares a step before the last drawn token is known. It is one token behind, and begins with
    the prompt's last token.  Upstream adds the latest token that it knows: after a prefill in between, that is the
    following token, and one token is never counted.  Here the token does not depend on other batches.
    """
    behind = 2 if self.enable_overlap else 1
    tokens = []
    for req, length in zip(self.reqs, self.seq_lens_cpu.tolist(), strict=True):
        # All tokens but the last drawn one have KV.
        index = length + 1 - len(req.origin_input_ids) - behind
        tokens.append(req.output_ids[index] if index >= 0 else req.origin_input_ids[-1])
    drawn = torch.tensor(tokens, dtype=torch.int64).to(self.device, non_blocking=True)
    self.sampling_info.penalizer_orchestrator.cumulate_output_tokens(drawn)


def around_update_finish_state(original: Callable[..., None], self: Any, new_accepted_len: int = 1) -> None:
    """End a request whose remaining tokens its grammar dictates.  Upstream calls this behind every token that it
    appends, before the grammar accepts it.
    """
    original(self, new_accepted_len)
    if self.grammar is not None and new_accepted_len == 1 and not self.finished():
        finish_if_forced(self, lambda: original(self, 1))
