"""The result of a model call in agent code."""

from __future__ import annotations

from typing import Any


class Reply(str):
    """The text that a model wrote, with its token counts and cost.

    It is a real `str`: parse it, format it, store it. It is immutable, so forks share it instead of copying it.
    """

    __slots__ = (
        "cached_tokens",
        "cost",
        "finish_reason",
        "prompt_tokens",
        "tokens_generated",
        "tokens_replayed",
    )

    tokens_generated: int
    """Tokens of this reply that the model computed, not counting replayed ones."""
    tokens_replayed: int
    """Tokens of this reply that the server's Logits Cache replayed without computing them."""
    finish_reason: str | None
    """Why the model stopped: `"stop"`, `"length"`, or another reason of the server."""
    prompt_tokens: int
    """Tokens of the prompt; 0 if the server does not report them. Calls that are merged into one request to OpenAI's
    endpoints share one prompt, which is charged to one of them; the others have 0."""
    cached_tokens: int
    """How many of them were hits in the server's prefix cache; 0 if the server does not report it."""
    cost: float | None
    """Cost of the call by the client's `prices`; None without prices."""

    def __new__(
        cls,
        text: str,
        tokens_generated: int = 0,
        tokens_replayed: int = 0,
        finish_reason: str | None = None,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        cost: float | None = None,
    ) -> Reply:
        reply = str.__new__(cls, text)
        reply.tokens_generated = tokens_generated
        reply.tokens_replayed = tokens_replayed
        reply.finish_reason = finish_reason
        reply.prompt_tokens = prompt_tokens
        reply.cached_tokens = cached_tokens
        reply.cost = cost
        return reply

    def to_json(self) -> list[Any]:
        """Return the arguments of the constructor as JSON values."""
        return [
            str(self),
            self.tokens_generated,
            self.tokens_replayed,
            self.finish_reason,
            self.prompt_tokens,
            self.cached_tokens,
            self.cost,
        ]

    def __copy__(self) -> Reply:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Reply:
        return self
