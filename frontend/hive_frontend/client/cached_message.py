"""Handles to messages whose KV a server keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hive_frontend.client.reply import Reply
from hive_frontend.operation import Operation, tracked


class KvUse(NamedTuple):
    """Where the KV of a new message's context came from, in tokens."""

    exact: int = 0
    """Hits in the exact prefix cache."""
    placed: int = 0
    """Reused from kept messages, moved to their positions without recomputing."""
    recomputed: int = 0
    """Of kept messages, recomputed by a corrector."""
    missing: int = 0
    """Computed because the server no longer had it."""


_EMPTY_REPLY = Reply("")
_UNKNOWN_USE = KvUse()


@dataclass(frozen=True, slots=True, repr=False)
class CachedMessage:
    """A message that `prefill` or `decode` made, to be used as a parent in later calls.

    The handle is plain data: it is immutable, so that branches share it, and can be pickled. The server keeps the
    message itself until the end of the session that made it, for all branches of a search.
    """

    id: str
    """Id of the message at the server."""
    session: str
    """The session that made it. The server deletes the message when this session ends."""
    text: str
    """The text given to `prefill`, or the model's `Reply` to `decode`. Empty if `prefill` was given tokens."""
    tokens: int
    """Tokens of the message, including its header."""
    offset: int
    """The position at which it was encoded."""
    header: str = ""
    """The text that `decode` made the model begin with. Empty for a prefilled message, or if given as tokens."""
    kv: KvUse = _UNKNOWN_USE
    """Where the KV of its context came from."""
    output_ids: tuple[int, ...] = ()
    """Tokens that the model wrote. Empty for a prefilled message, or if the server does not report them."""
    from_tokens: bool = False
    """Whether any part was given as tokens, so that the whole text is unknown."""

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.offset + self.tokens

    @property
    def content(self) -> str:
        """The text of the whole message, including its header."""
        return self.header + self.text

    @property
    def reply(self) -> Reply:
        """The model's reply, with its token counts; empty for a prefilled message."""
        return self.text if isinstance(self.text, Reply) else _EMPTY_REPLY

    @property
    def tokens_generated(self) -> int:
        """Tokens that the model computed."""
        return self.reply.tokens_generated

    @property
    def tokens_replayed(self) -> int:
        """Tokens of the answer that the server's Logits Cache replayed."""
        return self.reply.tokens_replayed

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped; None for a prefilled message."""
        return self.reply.finish_reason

    def delete(self) -> Operation[None]:
        """Delete the message at the server, for all branches of a search: `await message.delete()`.

        Messages made with it as a parent are not affected. Deleting a deleted message does nothing.
        """
        return tracked(Delete(self))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        if isinstance(self.text, Reply):
            fields["text"] = self.text.to_json()
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CachedMessage:
        """Return the handle whose fields `to_json` returned."""
        text, kv, ids = fields["text"], KvUse(*fields["kv"]), tuple(fields["output_ids"])
        if not isinstance(text, str):
            text = Reply(*text)
        return cls(**{**fields, "text": text, "kv": kv, "output_ids": ids})

    def __copy__(self) -> CachedMessage:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedMessage:
        return self

    def __repr__(self) -> str:
        shown = self.content if len(self.content) <= 40 else self.content[:37] + "..."
        return f"<message {self.id} at {self.offset} to {self.end}: {shown!r}>"


class Delete(Operation[None]):
    """Deletes a message at the server."""

    __slots__ = ("message", "name")

    def __init__(self, message: CachedMessage) -> None:
        self.message = message
        self.name = None

    async def perform(self, transition: Any) -> None:
        async def delete() -> None:
            await transition.session.client_of(transition.caller).delete_message(self.message)

        await transition.session.journaled(self, transition, delete)

    def __fork__(self, memo: dict[int, Any]) -> Delete:
        return self
