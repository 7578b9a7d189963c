"""The order in which samples of one state are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hive_frontend.client.base import Request


class Turns:
    """Lets the first of several samples of a state that are asked for at once go ahead of the others.

    Samples of a state that start together find nothing to replay: each makes the model compute what all of
    them share. Behind a first one, the others replay what it left in the server's Logits Cache.
    """

    def __init__(self) -> None:
        self._ahead: dict[tuple[asyncio.AbstractEventLoop, str, str], asyncio.Event] = {}

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[None]:
        """The time in which `request` may be at the server."""
        key = asyncio.get_running_loop(), request.session, request.state
        first = self._ahead.get(key)
        if first is not None:
            await first.wait()
            yield
            return
        over = self._ahead[key] = asyncio.Event()
        try:
            yield
        finally:
            # However the first one ended, the others need not wait for it any more.
            del self._ahead[key]
            over.set()
