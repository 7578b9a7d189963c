"""The response to ``GET /hive/events``."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hive.server.events.hub import EventHub

SEND_S = 20.0
"""Seconds in which a client must read a chunk, or it is dropped."""


class EventStream(Response):
    """Streams a hub's events to one client until the client leaves, is too slow, or the server stops.

    Raises:
        TooManyClients: on construction, while another response can still be sent.
    """

    media_type = "text/event-stream"

    def __init__(self, hub: EventHub, send_s: float = SEND_S) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        # An endless response has no length.
        del self.headers["content-length"]
        self._hub = hub
        self._frames = hub.join()
        self._send_s = send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((sending, leaving))
            await self._hub.leave()
        if sending.done() and not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        with contextlib.suppress(TimeoutError, OSError):
            async for chunk in self._frames:
                # A server's send blocks while the client does not read.
                async with asyncio.timeout(self._send_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
