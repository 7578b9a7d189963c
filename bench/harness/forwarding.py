"""A model that hands everything on to another one: what models build on that only look on."""

from __future__ import annotations

from collections.abc import Sequence

from hive_frontend.client import OnText, SessionHint

from hive import Client, Completion, Message, Request


class ForwardingModel(Client):
    """The other model under another name."""

    def __init__(self, model: Client) -> None:
        self._model = model

    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        return await self._model.complete(request, on_text)

    def render(self, messages: Sequence[Message]) -> str:
        return self._model.render(messages)

    async def register(self, agent: str, session: str) -> None:
        await self._model.register(agent, session)

    def hint(self, hint: SessionHint) -> None:
        self._model.hint(hint)

    async def end_session(self, session: str) -> None:
        await self._model.end_session(session)

    async def aclose(self) -> None:
        await self._model.aclose()
