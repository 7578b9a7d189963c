"""The turns of a conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(NamedTuple):
    """A model's call of a tool."""

    id: str | None
    """The server's id of the call; None if the model wrote it as text, because a grammar made it do so."""
    name: str
    arguments: str
    """A JSON object, as the model wrote it. It may be invalid."""

    @property
    def shown(self) -> str:
        """The call as Python would write it, for people to read."""
        try:
            arguments = json.loads(self.arguments or "{}").items()
        except (ValueError, AttributeError):
            return f"{self.name}({self.arguments})"
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in arguments)})"


class Message(NamedTuple):
    """One turn of a dialogue."""

    role: Role
    content: str

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the model calls in this turn."""
        return ()

    @property
    def tool_call_id(self) -> str | None:
        """The id of the call whose result this is, in a turn of the role `tool`."""
        return None

    @property
    def shown(self) -> str:
        """The text and the calls, for people to read."""
        return shown_answer(self.content, self.tool_calls)


class ToolMessage(Message):
    """A turn in which the model calls tools, or the result of such a call.

    It is a pair of role and content, too, so that code which unpacks messages works with every dialogue.
    """

    _tools: tuple[tuple[ToolCall, ...], str | None]

    def __new__(
        cls, role: Role, content: str, tool_calls: tuple[ToolCall, ...] = (), tool_call_id: str | None = None
    ) -> ToolMessage:
        message = super().__new__(cls, role, content)
        message._tools = (tool_calls, tool_call_id)
        return message

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self._tools[0]

    @property
    def tool_call_id(self) -> str | None:
        return self._tools[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolMessage) and (*self, self._tools) == (*other, other._tools)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self._tools))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*self, *self._tools)

    def __repr__(self) -> str:
        return f"ToolMessage{(*self, *self._tools)!r}"


def shown_answer(text: str, calls: Sequence[ToolCall]) -> str:
    """Return an answer and its calls, for people to read."""
    if not calls:
        return text
    # Calls without an id are the text.
    own = [] if calls[0].id is None or not text else [text]
    return "\n".join([*own, *(call.shown for call in calls)])
