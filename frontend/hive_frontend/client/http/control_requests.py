"""Requests to a server other than model calls: about agents, sessions and models."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from hive_frontend.client.http.behind_router import BehindRouter
from hive_frontend.client.http.connection import answering_within
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.errors import HiveError
from hive_frontend.wire import SessionHint

MAX_HINTS: Final = 256
"""Hints in one request; of more that wait, the oldest are dropped."""
_HINTS_S = 10.0
_log = logging.getLogger(__name__)


class ControlRequests:
    """Sends small requests to a server, or to the servers `behind` a router."""

    def __init__(
        self, transport: Transport, behind: BehindRouter | None, timeout_s: float, attempts: int
    ) -> None:
        self._transport = transport
        self._behind = behind
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._hints: list[SessionHint] = []
        """Hints that wait to be sent."""
        self._takes_hints = True
        """Whether the server has a route for hints; False once it had none."""
        self._scheduled: asyncio.AbstractEventLoop | None = None
        """The event loop that will send the hints at the end of this turn."""
        self.hints_lost = 0
        """Hints that did not reach the server."""

    async def send(
        self,
        method: str,
        path: str,
        body: Json | None,
        *,
        to_all: bool = False,
        wait_for_restart: bool = True,
    ) -> Json | None:
        """Return the answer; None for a missing route.

        Behind a router the request goes to one of the servers, or to all of them.
        """
        async with answering_within(self._timeout_s, f"{method} {self._transport.url}{path}"):
            if self._behind is not None and to_all:
                return await self._behind.send_to_all(method, path, body)
            if self._behind is not None:
                return await self._behind.send(method, path, body, attempts=self._attempts)
            return await self._transport.send(
                method,
                path,
                body,
                attempts=self._attempts,
                missing_ok=True,
                wait_for_restart=wait_for_restart,
            )

    def hint(self, hint: SessionHint) -> None:
        """Send a hint after this turn of the event loop, together with others; count it if that fails.

        Only one request with hints is in flight at a time.
        """
        if not self._takes_hints:
            return
        self._hints.append(hint)
        if len(self._hints) > MAX_HINTS:
            del self._hints[0]
            self.hints_lost += 1
        loop = asyncio.get_running_loop()
        if self._scheduled is not loop:
            self._scheduled = loop
            loop.call_soon(self._send_hints)

    def drop_hints(self) -> None:
        """Drop the hints that wait."""
        self._hints.clear()

    def _send_hints(self) -> None:
        self._scheduled = None
        # Without hints, as after `aclose`, no connection must be made.
        if self._hints and self not in (connection := self._transport.connection()).tasks:
            connection.start(self, asyncio.ensure_future(self._deliver_hints()))

    async def _deliver_hints(self) -> None:
        while self._hints:
            hints, self._hints = self._hints, []
            # Counted as lost until the server has them, because the delivery may be cancelled.
            self.hints_lost += len(hints)
            try:
                async with asyncio.timeout(_HINTS_S):
                    self._takes_hints = await self._post_hints({"hints": hints}) is not None
                self.hints_lost -= len(hints)
            except (HiveError, TimeoutError) as error:
                _log.debug("%s: %d hints were lost: %s", self._transport.url, len(hints), error)

    async def _post_hints(self, body: Json) -> Json | None:
        if self._behind is not None:
            return await self._behind.send_to_all("POST", "/hive/hints", body)
        return await self._transport.send(
            "POST", "/hive/hints", body, attempts=1, missing_ok=True, wait_for_restart=False
        )
