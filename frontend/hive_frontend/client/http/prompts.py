"""A cache of the prompts that a server rendered from dialogues, and of the tokens of the answers to them."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hive_frontend.client.body_fields import message_fields
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.client.messages import Message

Messages = tuple[Message, ...]

_RENDER = "/hive/render"
"""The route that renders a dialogue with the server's chat template, for a separate request to `/generate`."""


class Prompt(NamedTuple):
    """A rendered dialogue."""

    text: str
    ids: Sequence[int]
    """Its tokens."""
    sampling_params: Mapping[str, Any] | None
    """Default settings of the server's chat endpoint; None if that endpoint post-processes answers, and so must be
    used."""
    kept: int = 0
    """How many of the first tokens come from earlier turns, as the model wrote them."""


class PromptCache:
    """Prompts and answers of each session: an LRU cache of at most `max_bytes`."""

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[str, Messages, str | None], Prompt | array[int]] = OrderedDict()
        # Sessions may run in different threads.
        self._lock = threading.Lock()

    def get(self, session: str, messages: Messages) -> Prompt | None:
        """Return the prompt of a dialogue; None if it is not cached."""
        with self._lock:
            return self._prompt(session, messages)

    def add(self, session: str, messages: Messages, prompt: Prompt) -> None:
        """Cache the prompt of a dialogue."""
        with self._lock:
            self._put((session, messages, None), prompt._replace(ids=array("i", prompt.ids)))

    def add_answer(self, session: str, messages: Messages, text: str, ids: Sequence[int]) -> None:
        """Cache the tokens of an answer. Of two answers with the same text, the smaller token list is kept, so that
        later prompts do not depend on the order of arrival."""
        key = (session, messages, text)
        with self._lock:
            known = self._entries.get(key)
            if not isinstance(known, array) or list(ids) < list(known):
                self._put(key, array("i", ids))

    def prefix(self, session: str, messages: Messages) -> list[int]:
        """Return the tokens of the longest cached prefix of a dialogue that ends with an answer; empty if there is
        none."""
        with self._lock:
            for turn in range(len(messages) - 1, 0, -1):
                if messages[turn].role == "assistant":
                    answer = self._touch((session, messages[:turn], messages[turn].content))
                    prompt = self._prompt(session, messages[:turn])
                    if isinstance(answer, array) and prompt is not None:
                        return [*prompt.ids, *answer]
        return []

    def forget(self, session: str) -> None:
        """Drop all entries of a session."""
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
    """Return the approximate size of an entry. The strings of its key are not counted: they are the program's."""
    if isinstance(entry, Prompt):
        return 1024 + len(entry.text) + 4 * len(entry.ids)
    return 512 + 4 * len(entry)


class Rendering:
    """Renders dialogues at a server. `request` sends a request, and returns None if it is not a Hive server."""

    def __init__(
        self,
        transport: Transport,
        prompts: PromptCache,
        request: Callable[[str, str, Json], Awaitable[Json | None]],
    ) -> None:
        self._transport = transport
        self._prompts = prompts
        self._request = request

    async def prompt(self, session: str, messages: Messages) -> Prompt | None:
        """Return a dialogue rendered by a Hive server; None if the server is not a Hive server.

        Sends one request per dialogue and session: concurrent calls wait for the same answer.
        """
        known = self._prompts.get(session, messages)
        if known is not None:
            return known
        connection = self._transport.connection()
        key = (session, messages)
        if key not in connection.tasks:
            connection.start(key, asyncio.ensure_future(self._render(session, messages)))
        # Shielded: cancelling one call must not cancel the request for the others.
        prompt: Prompt | None = await asyncio.shield(connection.tasks[key])
        return prompt

    async def _render(self, session: str, messages: Messages) -> Prompt | None:
        prefix = self._prompts.prefix(session, messages)
        answer = await self._request("POST", _RENDER, render_body(messages, prefix))
        if answer is None:
            return None
        prompt = read_prompt(answer, prefix)
        self._prompts.add(session, messages, prompt)
        return prompt


def render_body(messages: Sequence[Message], prefix: list[int]) -> Json:
    """Return the body of a render request. The prompt begins with the tokens of `prefix`, as far as the text allows."""
    body: Json = {"messages": message_fields(messages)}
    return {**body, "prefix_ids": prefix} if prefix else body


def read_prompt(answer: Json, prefix: list[int]) -> Prompt:
    """Parse the answer of a render request."""
    return Prompt(answer["text"], prefix[: answer["kept"]] + answer["ids"], answer["sampling_params"])
