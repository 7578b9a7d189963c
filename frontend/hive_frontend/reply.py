"""What a model call gives back to agent code."""

from __future__ import annotations

from typing import Any


class Reply(str):
    """The text a model wrote, with what it cost.

    A real `str`: parse it, format it, store it. Immutable, so that forks share it instead of copying it.
    """

    __slots__ = ("finish_reason", "tokens_generated", "tokens_replayed")

    tokens_generated: int
    """Tokens of this reply that the model computed; replayed ones come on top."""
    tokens_replayed: int
    """Tokens of this reply that the server's Logits Cache served without computing them."""
    finish_reason: str | None
    """Why the model stopped: `"stop"`, `"length"`, or whatever else the server says."""

    def __new__(
        cls,
        text: str,
        tokens_generated: int = 0,
        tokens_replayed: int = 0,
        finish_reason: str | None = None,
    ) -> Reply:
        reply = str.__new__(cls, text)
        reply.tokens_generated = tokens_generated
        reply.tokens_replayed = tokens_replayed
        reply.finish_reason = finish_reason
        return reply

    def __copy__(self) -> Reply:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Reply:
        return self
