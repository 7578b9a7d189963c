"""By agent: a model of its own for each (another adapter, another way to sample), and the usage of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from hive_frontend import Client, Completion, Request, Usage
from hive_frontend.client import OnText, SessionHint


class ByAgent(Client):
    """Hands each request on to the client of its agent, or to the one for all others."""

    def __init__(self, clients: Mapping[str, Client], others: Client | None = None) -> None:
        self._clients = dict(clients)
        self._others = others

    def _of(self, agent: str) -> Client:
        client = self._clients.get(agent, self._others)
        if client is None:
            raise ValueError(f"there is no model for agent {agent!r}, only for {', '.join(self._clients)}")
        return client

    def _all(self) -> list[Client]:
        return [*self._clients.values(), *([] if self._others is None else [self._others])]

    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        return await self._of(request.agent).complete(request, on_text)

    async def register(self, agent: str, session: str) -> None:
        await self._of(agent).register(agent, session)

    def hint(self, hint: SessionHint) -> None:
        for client in self._all():
            client.hint(hint)

    async def end_session(self, session: str) -> None:
        await asyncio.gather(*(client.end_session(session) for client in self._all()))

    async def aclose(self) -> None:
        for client in self._all():
            await client.aclose()


def usage_by_agent(bills: Iterable[dict[str, Usage]]) -> dict[str, Usage]:
    """Usages of several runs added up by agent."""
    bills = list(bills)
    names = sorted({name for bill in bills for name in bill})
    return {name: Usage.sum(bill[name] for bill in bills if name in bill) for name in names}
