"""Prompt Choreography: messages whose KV the server keeps, and calls that attend to any of them in any order.

    plan = await prefill("Plan: first the roof.", parents=[system])
    answer = await decode("Assistant:", parents=[system, plan], max_tokens=200)

The calls are those of section 2.3 of "Accelerating Language Model Workflows with Prompt Choreography" (Bai and Eisner).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Unpack, cast

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import (
    AnswerSettings,
    Client,
    Corrector,
    MessageCall,
    OnText,
    Request,
    Sampling,
    sampling_of,
)
from hive_frontend.operation import Operation, tracked
from hive_frontend.operations.fork import Memo
from hive_frontend.operations.model_call import ModelCall, checked_sample
from hive_frontend.operations.transition import Transition
from hive_frontend.wire import check_name

Text = str | Sequence[int]
"""A text or a header, as a string or as token ids."""


class NewMessage(ModelCall[CachedMessage]):
    """A call that makes a message."""

    __slots__ = ("corrector", "new_offset", "offsets", "parents", "tokens")

    def __init__(
        self,
        what: str,
        text: Text,
        parents: Sequence[CachedMessage],
        offsets: Sequence[int | None] | None,
        new_offset: int | None,
        sampling: Sampling,
        name: str | None,
        agent: str | None,
        sample: int | None = None,
        corrector: Corrector | None = None,
    ) -> None:
        string, self.tokens = _checked_text(what, text)
        if agent is not None:
            check_name("agent", agent)
        super().__init__((), string, sampling, name, agent, sample)
        self.parents = _checked_parents(parents)
        self.offsets = _checked_offsets(offsets, len(self.parents))
        self.new_offset = None if new_offset is None else _checked_offset("new_offset", new_offset)
        self.corrector = corrector

    @property
    def shown(self) -> str:
        """The texts of its parents, and its own text or header."""
        return "".join([*(parent.content for parent in self.parents), self.prompt or ""])

    async def perform(self, transition: Transition) -> CachedMessage:
        return await transition.session.make(self, self.parents, self.send, transition)

    @abstractmethod
    async def send(self, client: Client, request: Request, on_text: OnText | None) -> CachedMessage:
        """Make the message with `client`; `request` has its text or header."""

    def _call(self, request: Request) -> MessageCall:
        return MessageCall(request, self.parents, self.offsets, self.new_offset, self.tokens, self.corrector)

    def __fork__(self, memo: Memo) -> NewMessage:
        # Everything in it is immutable.
        return self


class Prefill(NewMessage):
    """A message whose whole text the program gives."""

    __slots__ = ()

    async def send(self, client: Client, request: Request, on_text: OnText | None) -> CachedMessage:
        return await client.prefill(self._call(request))


class Decode(NewMessage):
    """A message whose header the program gives, and whose text the model writes."""

    __slots__ = ()

    async def perform(self, transition: Transition) -> CachedMessage:
        message = await super().perform(transition)
        transition.replies = (message.reply,)
        return message

    async def send(self, client: Client, request: Request, on_text: OnText | None) -> CachedMessage:
        return await client.decode(self._call(request), on_text)


def prefill(
    text: Text,
    *,
    parents: Sequence[CachedMessage] = (),
    offsets: Sequence[int | None] | None = None,
    new_offset: int | None = None,
    name: str | None = None,
    agent: str | None = None,
) -> Operation[CachedMessage]:
    """Prefill a message that the server keeps: `doc = await prefill("...", parents=[system])`.

    `text` is a string or a list of token ids. Each of its tokens attends to the tokens before it and to all tokens of
    `parents`, which are messages that `prefill` or `decode` returned. The KV of a parent is reused as it was computed,
    whatever its tokens attended to then, and moved to its position. `offsets` gives the position of each parent; None,
    or no `offsets`, places it right after the parent before it in the list, the first one at 0. `new_offset` is the
    position of the message itself, by default right after the last parent. Gaps, overlaps and any order are allowed.

    `name` and `agent` are those of `gen`. In budgets and totals a prefill counts as a call of 0 tokens.

    Raises:
        HiveError: if the model cannot keep messages. Use an `HttpClient` for a server started with
            `--hive-kv-segments`, or a `TextMessages` around any model.
        ModelError: if the server refuses, for example because a parent was deleted or its session has ended.
    """
    return tracked(Prefill("prefill", text, parents, offsets, new_offset, Sampling(), name, agent))


def decode(
    header: Text,
    *,
    parents: Sequence[CachedMessage] = (),
    offsets: Sequence[int | None] | None = None,
    new_offset: int | None = None,
    name: str | None = None,
    agent: str | None = None,
    sample: int | None = None,
    corrector: Corrector | None = None,
    **settings: Unpack[AnswerSettings],
) -> Operation[CachedMessage]:
    """Decode a message that begins with `header` and that the server keeps.

        answer = await decode("Assistant:", parents=[system, plan], max_tokens=200, name="answer")
        print(answer.text)

    `header` is a non-empty string or list of token ids; the logits after its last token give the first sampled token.
    The message consists of the header and what the model wrote, without the end token; its `text` is what the model
    wrote, a `Reply`. `parents`, `offsets`, `new_offset` and the errors are those of `prefill`. `sample` and `settings`
    (`max_tokens`, `temperature`, `choices` and so on) are those of `gen`: the state can be a branch point, where each
    firing samples another message with its own seed.

    `corrector` selects the part of the parents' KV that the server recomputes, because it was computed without
    attending to what precedes it now: `"none"`, `"recompute-all"`, or a kind with its settings, such as
    `{"kind": "first-k", "share": 0.15}`. The default is the server's choice.
    """
    sampling = sampling_of(None, **settings)
    if corrector is not None and not isinstance(corrector, (str, Mapping)):
        raise TypeError(
            f'corrector must be a name such as "none", or a dict with a "kind", not {corrector!r}'
        )
    return tracked(
        Decode(
            "decode",
            header,
            parents,
            offsets,
            new_offset,
            sampling,
            name,
            agent,
            checked_sample(sample),
            dict(corrector) if isinstance(corrector, Mapping) else corrector,
        )
    )


def _checked_text(what: str, text: object) -> tuple[str, tuple[int, ...] | None]:
    """Return a text and None, or an empty text and tokens."""
    noun = "header" if what == "decode" else "text"
    if isinstance(text, str):
        # As a plain string: a `Reply` also has token counts, which would be counted twice.
        string, tokens = str(text), None
    elif (
        isinstance(text, Sequence)
        and not isinstance(text, (bytes, bytearray))
        and all(type(token) is int and token >= 0 for token in text)
    ):
        string, tokens = "", tuple(text)
    else:
        raise TypeError(f"{what}: the {noun} must be a string or a list of token ids, not {_kind(text)}")
    if not string and not tokens:
        raise ValueError(f"{what}: the {noun} must not be empty")
    return string, tokens


def _checked_parents(parents: object) -> tuple[CachedMessage, ...]:
    if isinstance(parents, str) or not isinstance(parents, Sequence):
        raise TypeError(f"parents must be a list of messages, such as [system, plan], not {_kind(parents)}")
    seen: set[tuple[str, str]] = set()
    for place, parent in enumerate(parents):
        if isinstance(parent, Operation):
            raise TypeError(f"parent {place} is a call without `await`: write `await` before it")
        if not isinstance(parent, CachedMessage):
            raise TypeError(
                f"parent {place} is {_kind(parent)}; pass the message that prefill or decode returned, not its id or "
                "its text"
            )
        key = parent.session, parent.id
        if key in seen:
            raise ValueError(
                f"parent {place} is {parent!r}, which is already in the list; give each parent once"
            )
        seen.add(key)
    return tuple(cast("Sequence[CachedMessage]", parents))


def _checked_offsets(offsets: object, count: int) -> tuple[int | None, ...]:
    if offsets is None:
        return ()
    if isinstance(offsets, str) or not isinstance(offsets, Sequence):
        raise TypeError(f"offsets must be a list of a position or None for each parent, not {offsets!r}")
    if len(offsets) != count:
        raise ValueError(
            f"offsets has {len(offsets)} positions for {count} parents; give one for each, None for the default"
        )
    return tuple(
        None if offset is None else _checked_offset(f"offset {place}", offset)
        for place, offset in enumerate(offsets)
    )


def _checked_offset(what: str, offset: object) -> int:
    if type(offset) is not int or offset < 0:
        raise ValueError(f"{what} must be a position of at least 0, not {offset!r}")
    return offset


def _kind(value: object) -> str:
    return f"{value!r}" if isinstance(value, str) and len(value) <= 40 else f"of type {type(value).__name__}"
