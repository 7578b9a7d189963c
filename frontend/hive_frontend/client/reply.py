"""What a model call gives back to agent code."""

from __future__ import annotations

from typing import Any


class Reply(str):
    """The text a model wrote, with what it cost.

    A real `str`: parse it, format it, store it. Immutable, so that forks share it instead of copying it.
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
    """Tokens of this reply that the model computed; replayed ones come on top."""
    tokens_replayed: int
    """Tokens of this reply that the server's Logits Cache served without computing them."""
    finish_reason: str | None
    """Why the model stopped: `"stop"`, `"length"`, or whatever else the server says."""
    prompt_tokens: int
    """Tokens of the prompt; 0 where the server does not tell, and for all but one of the calls that travelled to
    OpenAI's endpoints as one request, which reads the prompt once."""
    cached_tokens: int
    """Those of them that the server had in its prefix cache; 0 where it does not tell."""
    cost: float | None
    """What the call cost, by the client's `prices`; None without."""

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
        """The arguments that make it again, as JSON can express them."""
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
