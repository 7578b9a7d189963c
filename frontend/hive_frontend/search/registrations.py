"""The registrations of a session's agents at the servers of their models."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from hive_frontend.client.contract import Client
from hive_frontend.wire import SessionHint, check_name

logger = logging.getLogger(__name__)

_END_SESSION_TIMEOUT_S: Final = 10.0
"""Timeout in seconds for telling a server that a session has ended."""


class Registrations:
    """Registers agents before their first calls, and ends the session at all servers that know it."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._tasks: dict[tuple[Client, str], asyncio.Task[None] | None] = {}
        """The registrations of agents with clients; None if a client registered the agent at once."""

    def begin(self, client: Client, agent: str) -> asyncio.Task[None] | None:
        """Register `agent` if it is new. Returns the task to wait for, which concurrent calls share, or None."""
        if (client, agent) in self._tasks:
            return self._tasks[client, agent]
        return self._register(client, agent)

    def now(self, client: Client, agent: str) -> bool:
        """Register `agent` if that is possible without waiting; return whether it is registered."""
        if (client, agent) not in self._tasks:
            if not client.register_now(check_name("agent", agent), self._session):
                return False
            self._tasks[client, agent] = None
        return True

    def hint(self, hint: SessionHint) -> None:
        """Give a hint to all servers of the session."""
        for client in self._clients():
            client.hint(hint)

    async def end(self, *, paused: bool) -> None:
        """Tell all servers that the session has ended, or is `paused` until people answer."""
        clients = self._clients()
        under_way = [task for task in self._tasks.values() if task is not None and not task.done()]
        for task in under_way:
            task.cancel()
        if under_way:
            # Otherwise one might reach the server after the end of the session.
            await asyncio.wait(under_way)
        for client in clients:
            await self._end_at(client, paused)

    async def _end_at(self, client: Client, paused: bool) -> None:
        """Tell a model's server that the session has ended; log a warning if that fails.

        A failure must neither replace the result or error of the session nor delay it for long: the server drops
        idle sessions anyway.
        """
        limit = asyncio.timeout(_END_SESSION_TIMEOUT_S)
        try:
            async with limit:
                await (client.pause_session(self._session) if paused else client.end_session(self._session))
        except Exception as problem:
            why = (
                f"no answer within {_END_SESSION_TIMEOUT_S:g} s"
                if limit.expired()
                else str(problem) or repr(problem)
            )
            what = "waits" if paused else "ended"
            logger.warning("the server could not be told that session %s %s: %s", self._session, what, why)

    def _clients(self) -> list[Client]:
        return list(dict.fromkeys(client for client, _ in self._tasks))

    def _register(self, client: Client, agent: str) -> asyncio.Task[None]:
        key = client, check_name("agent", agent)
        registration = asyncio.ensure_future(client.register(agent, self._session))
        self._tasks[key] = registration
        registration.add_done_callback(lambda task: self._forget_if_failed(task, key))
        return registration

    def _forget_if_failed(self, task: asyncio.Task[None], key: tuple[Client, str]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._tasks.pop(key, None)
