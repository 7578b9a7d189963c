"""What a server made of dialogues: rendered prompts, and the tokens of the answers to them."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.client.messages import Message
from hive_frontend.client.spelling import spelled

Messages = tuple[Message, ...]

_RENDER = "/hive/render"
"""The route that makes a prompt of a dialogue as the server's chat template does, where another request generates."""


class Prompt(NamedTuple):
    """A dialogue as the model sees it."""

    text: str
    ids: Sequence[int]
    """Its tokens."""
    sampling_params: Mapping[str, Any] | None
    """What the server's chat endpoint sets where a request does not; None when the chat endpoint does more with
    an answer than to hand it on, and must be asked."""
    kept: int = 0
    """How many of the tokens are those of earlier turns, as the model wrote them."""


class PromptCache:
    """Remembers prompts and answers per session, the most recently used ones within `max_bytes`."""

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[str, Messages, str | None], Prompt | array[int]] = OrderedDict()
        # Sessions may run in threads of their own.
        self._lock = threading.Lock()

    def get(self, session: str, messages: Messages) -> Prompt | None:
        """The prompt of a dialogue, if known."""
        with self._lock:
            return self._prompt(session, messages)

    def add(self, session: str, messages: Messages, prompt: Prompt) -> None:
        """Remember the prompt of a dialogue."""
        with self._lock:
            self._put((session, messages, None), prompt._replace(ids=array("i", prompt.ids)))

    def add_answer(self, session: str, messages: Messages, text: str, ids: Sequence[int]) -> None:
        """Remember the tokens of an answer. Of two answers of one text the smaller is kept: which one comes first
        is chance, and must not decide what later prompts look like."""
        key = (session, messages, text)
        with self._lock:
            known = self._entries.get(key)
            if not isinstance(known, array) or list(ids) < list(known):
                self._put(key, array("i", ids))

    def prefix(self, session: str, messages: Messages) -> list[int]:
        """The tokens of the longest known beginning of a dialogue that ends in an answer; empty if none is."""
        with self._lock:
            for turn in range(len(messages) - 1, 0, -1):
                if messages[turn].role == "assistant":
                    answer = self._touch((session, messages[:turn], messages[turn].content))
                    prompt = self._prompt(session, messages[:turn])
                    if isinstance(answer, array) and prompt is not None:
                        return [*prompt.ids, *answer]
        return []

    def forget(self, session: str) -> None:
        """Drop what is known of a session."""
        with self._lock:
            for key in [key for key in self._entries if key[0] == session]:
                self._bytes -= _bytes(self._entries.pop(key))

    def _prompt(self, session: str, messages: Messages) -> Prompt | None:
        entry = self._touch((session, messages, None))
        return entry if isinstance(entry, Prompt) else None

    def _touch(self, key: tuple[str, Messages, str | None]) -> Prompt | array[int] | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def _put(self, key: tuple[str, Messages, str | None], entry: Prompt | array[int]) -> None:
        old = self._entries.pop(key, None)
        self._bytes += _bytes(entry) - (0 if old is None else _bytes(old))
        self._entries[key] = entry
        while self._bytes > self._max_bytes:
            self._bytes -= _bytes(self._entries.popitem(last=False)[1])


def _bytes(entry: Prompt | array[int]) -> int:
    """About what an entry takes; the strings of its key are the program's own."""
    if isinstance(entry, Prompt):
        return 1024 + len(entry.text) + 4 * len(entry.ids)
    return 512 + 4 * len(entry)


class Rendering:
    """Prompts of dialogues, which `ask` gets from a server: None where it is not Hive's."""

    def __init__(
        self,
        transport: Transport,
        prompts: PromptCache,
        ask: Callable[[str, str, Json], Awaitable[Json | None]],
    ) -> None:
        self._transport = transport
        self._prompts = prompts
        self._ask = ask

    async def prompt(self, session: str, messages: Messages) -> Prompt | None:
        """What a Hive server's chat template makes of a dialogue; None when it is no Hive server.

        Asked once per dialogue and session: calls that come meanwhile wait for the same answer.
        """
        known = self._prompts.get(session, messages)
        if known is not None:
            return known
        connection = self._transport.connection()
        key = (session, messages)
        if key not in connection.tasks:
            connection.start(key, asyncio.ensure_future(self._render(session, messages)))
        # Shielded: a call that is cancelled must not take away what others wait for.
        prompt: Prompt | None = await asyncio.shield(connection.tasks[key])
        return prompt

    async def _render(self, session: str, messages: Messages) -> Prompt | None:
        prefix = self._prompts.prefix(session, messages)
        answer = await self._ask("POST", _RENDER, render_body(messages, prefix))
        if answer is None:
            return None
        prompt = read_prompt(answer, prefix)
        self._prompts.add(session, messages, prompt)
        return prompt


def render_body(messages: Sequence[Message], prefix: list[int]) -> Json:
    """The request for a prompt that begins with the tokens of `prefix` as far as the text allows."""
    body: Json = {"messages": spelled(messages)}
    return {**body, "prefix_ids": prefix} if prefix else body


def read_prompt(answer: Json, prefix: list[int]) -> Prompt:
    """The prompt that a server made."""
    return Prompt(answer["text"], prefix[: answer["kept"]] + answer["ids"], answer["sampling_params"])
