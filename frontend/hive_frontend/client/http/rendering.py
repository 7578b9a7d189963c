"""`/hive/render`: dialogues as a server's chat template makes prompts of them, where another request generates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from hive_frontend.client.dialogue import Message
from hive_frontend.client.http.prompts import Messages, Prompt, PromptCache
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.client.spelling import spelled

PATH = "/hive/render"


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
        answer = await self._ask("POST", PATH, render_body(messages, prefix))
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
