"""Hook on the chat endpoint's streamed log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def around_process_logprobs_tokens(
    original: Callable[..., Any], self: Any, logprobs: Any, use_token_index: bool = False
) -> Any:
    """Use each token's own alternatives: upstream uses the first token's for a whole chunk, and a replayed chunk has
    many.
    """
    return original(self, logprobs, use_token_index=True)
