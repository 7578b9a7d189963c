"""The chat endpoint: what its template makes of a dialogue, and a hook on how it streams log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def around_process_logprobs_tokens(
    original: Callable[..., Any], self: Any, logprobs: Any, use_token_index: bool = False
) -> Any:
    """Upstream gives every token of a streamed chunk the first one's; a replayed chunk has many tokens."""
    return original(self, logprobs, use_token_index=True)
