"""The result of a model call in agent code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hive_frontend.client.messages import ToolCall, shown_answer


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
        "tool_calls",
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
    tool_calls: tuple[ToolCall, ...]
    """The tools that the model calls, instead of a final answer."""

    def __new__(
        cls,
        text: str,
        tokens_generated: int = 0,
        tokens_replayed: int = 0,
        finish_reason: str | None = None,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        cost: float | None = None,
        tool_calls: Iterable[Iterable[Any]] = (),
    ) -> Reply:
        reply = str.__new__(cls, text)
        reply.tokens_generated = tokens_generated
        reply.tokens_replayed = tokens_replayed
        reply.finish_reason = finish_reason
        reply.prompt_tokens = prompt_tokens
        reply.cached_tokens = cached_tokens
        reply.cost = cost
        reply.tool_calls = tuple(ToolCall(*call) for call in tool_calls) if tool_calls else ()
        return reply

    @property
    def shown(self) -> str:
        """The text and the calls of tools, for people to read."""
        return shown_answer(str(self), self.tool_calls)

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
            *([[list(call) for call in self.tool_calls]] if self.tool_calls else ()),
        ]

    def __copy__(self) -> Reply:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Reply:
        return self
