"""Handles to messages whose keys and values a server keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hive_frontend.client.reply import Reply
from hive_frontend.operation import Operation, to_be_awaited


class KvUse(NamedTuple):
    """Where the keys and values came from that a new message was computed over, in tokens of its context."""

    exact: int = 0
    """From the exact prefix cache."""
    placed: int = 0
    """From kept messages, moved to their places and not computed again."""
    recomputed: int = 0
    """From kept messages, computed again by a corrector."""
    missing: int = 0
    """Computed because the server did not have them any more."""


_NOTHING = Reply("")
_UNTOLD = KvUse()


@dataclass(frozen=True, slots=True, repr=False)
class CachedMessage:
    """A message that `prefill` or `decode` made, for later calls to see as a parent.

    The handle is data: it is immutable, so that branches share it, and can be pickled. The message itself is at the
    server until the end of the session that made it, for all branches, whichever of them made it.
    """

    id: str
    """What the server calls it."""
    session: str
    """The session that made it, and with which it ends."""
    text: str
    """What was given to `prefill`, or else what the model wrote, a `Reply`. Empty where it was given as tokens."""
    tokens: int
    """Tokens of the message, its header included."""
    offset: int
    """The position at which it was encoded."""
    header: str = ""
    """What the program made the model begin with; empty for a prefilled message, or where it was given as tokens."""
    kv: KvUse = _UNTOLD
    """What the server had to compute for it."""
    output_ids: tuple[int, ...] = ()
    """Tokens that the model wrote; empty for a prefilled message, and where the server does not tell."""
    in_tokens: bool = False
    """Whether it was given as tokens, at least in part, so that its text is not known."""

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.offset + self.tokens

    @property
    def content(self) -> str:
        """The text of the whole message: the header and what follows it."""
        return self.header + self.text

    @property
    def reply(self) -> Reply:
        """What the model wrote, with what it cost; empty for a prefilled message."""
        return self.text if isinstance(self.text, Reply) else _NOTHING

    @property
    def tokens_generated(self) -> int:
        """Tokens that the model computed."""
        return self.reply.tokens_generated

    @property
    def tokens_replayed(self) -> int:
        """Tokens of the answer that a cache of the server served instead."""
        return self.reply.tokens_replayed

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped; None for a prefilled message."""
        return self.reply.finish_reason

    def delete(self) -> Operation[None]:
        """Have the server forget the message: `await message.delete()`. For all branches of a search, at once.

        Messages made with it as a parent stay as they are. Nothing happens where it is forgotten already.
        """
        return to_be_awaited(Delete(self))

    def to_json(self) -> dict[str, Any]:
        """All that the handle says, as JSON can express it."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        if isinstance(self.text, Reply):
            fields["text"] = self.text.to_json()
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CachedMessage:
        """The handle of which `to_json` gave the fields."""
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
    """Forgetting a message."""

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
