"""A conversation with a model: a list of messages that is cheap to fork."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from hive_frontend.client.contract import Client
from hive_frontend.client.http.client import as_client
from hive_frontend.client.messages import Message, Role, ToolCall, ToolMessage
from hive_frontend.client.reply import Reply
from hive_frontend.errors import NoModelError
from hive_frontend.operation import current_environment

_ROLES = ("system", "user", "assistant")


class Dialogue:
    """A conversation that grows.

        d = Dialogue(system="You are terse.")
        d.user("Name a prime.")
        answer = await gen(d)        # the answer is appended as the assistant's turn

    When a search forks a state, every branch gets its own copy of the dialogue. Messages are immutable and
    shared between forks, so a fork costs one list copy, however long the messages are.
    """

    __slots__ = ("_messages", "label")

    def __init__(
        self, messages: Iterable[Message] = (), *, system: str | None = None, label: str | None = None
    ) -> None:
        if isinstance(messages, str):
            raise TypeError(f"a dialogue is made of messages: write Dialogue().user({messages!r})")
        self.label = label
        """Name of the dialogue in the pieces of streamed text."""
        self._messages: list[Message] = []
        if system is not None:
            self._messages.append(Message("system", system))
        self._messages.extend(_as_message(message, number) for number, message in enumerate(messages))

    def user(self, content: str) -> Dialogue:
        """Append a turn of the user, and return the dialogue, so that calls can be chained."""
        return self._append("user", content)

    def assistant(self, content: str) -> Dialogue:
        """Append a turn of the model, and return the dialogue, so that calls can be chained."""
        if isinstance(content, Reply) and content.tool_calls:
            self._messages.append(ToolMessage("assistant", str(content), content.tool_calls))
            return self
        return self._append("assistant", content)

    def tool(self, content: str, call: ToolCall) -> Dialogue:
        """Append the result of a tool that the last turn of the model called, and return the dialogue."""
        self._messages.append(ToolMessage("tool", content, (), call.id))
        return self

    def _append(self, role: Role, content: str) -> Dialogue:
        if not isinstance(content, str):
            raise TypeError(f"a message of a dialogue is a string, not {type(content).__name__}")
        self._messages.append(Message(role, content))
        return self

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turns so far."""
        return tuple(self._messages)

    def copy(self) -> Dialogue:
        """Return an independent dialogue with the same turns."""
        return Dialogue(self._messages, label=self.label)

    def __fork__(self, memo: dict[int, Any]) -> Dialogue:
        fork = Dialogue.__new__(Dialogue)
        fork._messages = self._messages.copy()
        fork.label = self.label
        return fork

    __deepcopy__ = __fork__

    def render(self, model: Client | str | None = None) -> str:
        """Return the exact prompt that a call with this dialogue sends, including the chat template.

        `model` is a client or a URL; the default is the model of the current run or session.
        """
        client = None if model is None else as_client(model)
        if client is None and (around := current_environment()) is not None:
            client = cast("Client | None", around.client)
        if client is None:
            raise NoModelError(
                "there is no model to render for: call render(model=...) with a Client or a URL"
            )
        return client.render(self.messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(tuple(self._messages))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dialogue) and self._messages == other._messages

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Dialogue({self._messages!r})"


def as_messages(prompt: object) -> tuple[Message, ...]:
    """Return the messages of `prompt`: a string (one user turn), a dialogue, or a list of messages.

    Each item of a list is a `Message`, a `(role, content)` pair, or a `{"role": ..., "content": ...}` dict.
    """
    if isinstance(prompt, str):
        return (Message("user", str(prompt)),)
    if isinstance(prompt, Dialogue):
        messages = prompt.messages
    elif isinstance(prompt, (list, tuple)):
        messages = tuple(_as_message(item, number) for number, item in enumerate(prompt))
    else:
        raise TypeError(
            f"a prompt is a string, a Dialogue or a list of messages, not {type(prompt).__name__}"
        )
    if not messages:
        raise ValueError("the prompt has no messages: give at least one")
    return messages


def _as_message(item: object, number: int) -> Message:
    if isinstance(item, Message):
        return item
    if isinstance(item, dict) and item.keys() == {"role", "content"}:
        role, content = item["role"], item["content"]
    elif isinstance(item, tuple) and len(item) == 2:
        role, content = item
    else:
        raise TypeError(
            f"message {number} of the prompt is {item!r}; "
            'write {"role": "user", "content": "..."} or ("user", "...")'
        )
    if role not in _ROLES or not isinstance(content, str):
        raise TypeError(
            f"message {number} of the prompt needs a role, one of {', '.join(_ROLES)}, and a string "
            f"as content, not {role!r} and {type(content).__name__}"
        )
    return Message(role, str(content))
