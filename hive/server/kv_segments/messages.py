"""The messages of choreographies in the HTTP process: their ids, tokens, and the positions where they were encoded.

Prompt Choreography (Bai and Eisner, section 2.3) has two calls, prefill and decode.  Both see the KV of earlier
messages, their *parents*, each moved to an *offset*, and make a message of their own at *new_offset*.  The KV is held
by the scheduler, which recomputes whatever it had to evict from the tokens that are kept here.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hive_frontend.wire import NAME_RULE, is_name

from hive.server.kv_segments.request import KvRequest, WireSpan
from hive.server.request_tag import RequestError, shown

MAX_MESSAGES = 65536
MAX_PARENTS = 1024


@dataclass(frozen=True, slots=True)
class Message:
    """A message whose KV was encoded."""

    id: str
    tenant: str | None
    session: str | None
    tokens: array[int]
    offset: int
    """Position of its first token when it was encoded."""

    @property
    def end(self) -> int:
        """Position behind its last token when it was encoded."""
        return self.offset + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of the tokens of a call."""

    parents: tuple[Message, ...]
    offsets: tuple[int, ...]
    """Position of each parent's first token."""
    new_offset: int
    """Position of the first token of the call's own message."""

    @property
    def context(self) -> int:
        """Number of tokens of all parents."""
        return sum(len(parent.tokens) for parent in self.parents)

    def input_ids(self, own: Sequence[int]) -> list[int]:
        """Return the engine's input: the tokens of the parents in order, then the call's own tokens."""
        return [token for parent in self.parents for token in parent.tokens] + list(own)

    def spans(self) -> tuple[WireSpan, ...]:
        """Return the spans of the parents within the input."""
        found, at = [], 0
        for parent, offset in zip(self.parents, self.offsets, strict=True):
            end = at + len(parent.tokens)
            found.append(WireSpan(at, end, offset, f"message:{parent.id}"))
            at = end
        return tuple(found)

    def request(self, corrector: Any) -> KvRequest:
        """Return the request to the scheduler, without the spans to keep."""
        return KvRequest(
            spans=self.spans(), shift=self.new_offset - self.context, choreographed=True, corrector=corrector
        )


class MessageRegistry:
    """All messages of a server, by tenant and id."""

    def __init__(self, context_length: int) -> None:
        """``context_length`` bounds both the number of tokens of a call and their positions."""
        self._context_length = context_length
        self._messages: dict[tuple[str | None, str], Message] = {}
        self._making: dict[tuple[str | None, str], str | None] = {}
        """By (tenant, id) of each message that a call is making: its session."""

    def __len__(self) -> int:
        return len(self._messages)

    def get(self, tenant: str | None, id: str) -> Message | None:
        """Return a message of a tenant; None if it is unknown."""
        return self._messages.get((tenant, id))

    def new_id(self, tenant: str | None, wanted: Any, field: str) -> str:
        """Return the id for a new message: ``wanted``, if the client chose one.

        Raises:
            RequestError: if the id is malformed or taken, or if there are too many messages.
        """
        if len(self._messages) >= MAX_MESSAGES:
            raise RequestError(
                field,
                f"exceeds the server's limit of {MAX_MESSAGES} messages: delete some, or end sessions",
            )
        if wanted is None:
            return f"m-{secrets.token_hex(8)}"
        if not is_name(wanted):
            raise RequestError(field, f"{NAME_RULE}, got {shown(wanted)}")
        if (tenant, wanted) in self._messages or (tenant, wanted) in self._making:
            raise RequestError(field, f"must be new: a message {wanted!r} already exists")
        return wanted

    @contextmanager
    def making(self, tenant: str | None, id: str, session: str | None) -> Iterator[Callable[[], bool]]:
        """Reserve the id of a message while a call makes it.

        Yields a function that returns whether the message is still wanted: its session may end meanwhile.

        Raises:
            RequestError: if the id is taken or reserved.
        """
        self.new_id(tenant, id, "id")
        self._making[tenant, id] = session
        try:
            yield lambda: (tenant, id) in self._making
        finally:
            self._making.pop((tenant, id), None)

    def add(self, message: Message) -> None:
        """Add a message that was made."""
        self._messages[message.tenant, message.id] = message

    def remove(self, tenant: str | None, id: str) -> Message | None:
        """Remove and return a message; None if it is unknown."""
        return self._messages.pop((tenant, id), None)

    def end_session(self, tenant: str | None, session: str) -> list[Message]:
        """Remove and return the messages of a session; those that calls are making are no longer wanted."""
        gone = [m for m in self._messages.values() if (m.tenant, m.session) == (tenant, session)]
        for message in gone:
            del self._messages[message.tenant, message.id]
        for key in [key for key, of in self._making.items() if (key[0], of) == (tenant, session)]:
            del self._making[key]
        return gone

    def layout(
        self,
        tenant: str | None,
        call: Mapping[str, Any],
        own: int,
        most_new: int,
        *,
        siblings: Sequence[str] = (),
    ) -> Layout:
        """Return the positions of the parents of a call, and of its own message.

        Args:
            tenant: the tenant of the call.
            call: has ``parents``, ``offsets`` and ``new_offset``, all optional.
            own: number of tokens in the call's own message so far.
            most_new: maximum number of tokens that the call may generate.
            siblings: ids of the messages that calls in the same list make.

        Raises:
            RequestError: with the invalid field and its rule.
        """
        parents = self._parents(tenant, call.get("parents"), siblings)
        offsets = self._offsets(call.get("offsets"), parents)
        behind = offsets[-1] + len(parents[-1].tokens) if parents else 0
        new_offset = call.get("new_offset")
        if new_offset is None:
            new_offset = behind
        self._check_position(new_offset, "new_offset")
        layout = Layout(tuple(parents), tuple(offsets), new_offset)
        for what, fixed in (("parents", layout.context + own), ("new_offset", new_offset + own)):
            length = fixed + most_new
            if length > self._context_length:
                raise RequestError(
                    what if fixed >= self._context_length else "sampling_params.max_new_tokens",
                    f"must leave space for {own} tokens of the message and {most_new} new ones within the context of "
                    f"{self._context_length}, got {length} in all",
                )
        return layout

    def _parents(self, tenant: str | None, value: Any, siblings: Sequence[str]) -> list[Message]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise RequestError("parents", f"must be a list of message ids, got {shown(value)}")
        if len(value) > MAX_PARENTS:
            raise RequestError("parents", f"must be at most {MAX_PARENTS}, got {len(value)}")
        found: list[Message] = []
        for at, id in enumerate(value):
            field = f"parents[{at}]"
            if isinstance(id, str) and id in siblings:
                raise RequestError(
                    field,
                    f"must not be {shown(id)}, which this request makes: a call sees neither itself nor its siblings",
                )
            message = self.get(tenant, id) if isinstance(id, str) else None
            if message is None:
                raise RequestError(field, f"must be the id of an existing message, got {shown(id)}")
            if any(message is other for other in found):
                raise RequestError(field, f"must not be given twice, got {shown(id)}")
            found.append(message)
        return found

    def _offsets(self, value: Any, parents: list[Message]) -> list[int]:
        if value is None:
            value = [None] * len(parents)
        if not isinstance(value, list):
            raise RequestError("offsets", f"must be a list of integers and nulls, got {shown(value)}")
        if len(value) != len(parents):
            raise RequestError(
                "offsets", f"must have one entry for each of the {len(parents)} parents, got {len(value)}"
            )
        found: list[int] = []
        behind = 0
        for at, (offset, parent) in enumerate(zip(value, parents, strict=True)):
            if offset is None:
                offset = behind
            self._check_position(offset, f"offsets[{at}]")
            behind = offset + len(parent.tokens)
            if behind > self._context_length:
                raise RequestError(
                    f"offsets[{at}]",
                    f"must leave space for the {len(parent.tokens)} tokens of the message within the context of "
                    f"{self._context_length}, got {offset}",
                )
            found.append(offset)
        return found

    def _check_position(self, value: Any, field: str) -> None:
        if type(value) is not int or not 0 <= value < self._context_length:
            raise RequestError(
                field,
                f"must be a position, an integer from 0 to {self._context_length - 1}, got {shown(value)}",
            )
