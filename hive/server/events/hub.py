"""Forwards snapshots to browsers: one poll of the schedulers for all clients, and a stream for each client.

Only the last snapshot is kept, and each client gets what has changed since its last frame.  A slow client skips
snapshots, so nothing is buffered for it.  Without clients nothing is polled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from hive.server.events.event import AnyEvent
from hive.server.events.merge import merged

logger = logging.getLogger(__name__)

MAX_CLIENTS = 32
INTERVAL_S = 0.5
"""Seconds between two polls."""

KEEP_ALIVE_S = 10.0
"""Seconds of silence after which a client gets a comment as a sign of life."""

_STOPPING_CHECK_S = 1.0
"""Seconds between two checks whether the server is stopping."""

_RETRY = b"retry: 2000\n\n"
_KEEP_ALIVE = b": alive\n\n"

Poll = Callable[[], Awaitable[Sequence[Sequence[AnyEvent]]]]
"""Asks every data-parallel rank for its snapshot."""


class TooManyClients(Exception):
    """The maximum number of clients is reached."""


class EventHub:
    """Polls the schedulers while it has clients.  Belongs to one event loop.

    ``stopping`` returns whether the server is about to stop.  Streams then end, because a graceful shutdown waits for
    them.
    """

    def __init__(
        self,
        poll: Poll,
        *,
        interval_s: float = INTERVAL_S,
        max_clients: int = MAX_CLIENTS,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._poll = poll
        self._interval_s = interval_s
        self._max_clients = max_clients
        self._stopping = stopping
        self._reader: asyncio.Task[None] | None = None
        self._frames: dict[str, tuple[int, bytes]] = {}
        """By kind of event: its version, and its server-sent frame."""
        self._version = 0
        self._changed = asyncio.Event()
        self.clients = 0

    def join(self) -> AsyncIterator[bytes]:
        """Return a stream for one more client, to be iterated and closed.

        Raises:
            TooManyClients: if the maximum number of clients is reached.
        """
        if self.clients >= self._max_clients:
            raise TooManyClients(f"the maximum of {self._max_clients} clients is reached")
        self.clients += 1
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        return self._stream()

    async def leave(self) -> None:
        """Remove a client of :meth:`join`; the last one ends the polling."""
        self.clients -= 1
        if self.clients == 0 and self._reader is not None:
            reader, self._reader = self._reader, None
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
            self._frames.clear()

    async def _stream(self) -> AsyncIterator[bytes]:
        """Yield frames of server-sent events, several at a time."""
        loop = asyncio.get_running_loop()
        seen: dict[str, int] = {}
        last_sent = loop.time()
        yield _RETRY
        while not self._stopping():
            changed = self._changed
            news = [
                (kind, version, frame)
                for kind, (version, frame) in self._frames.items()
                if seen.get(kind) != version
            ]
            if news or loop.time() - last_sent >= KEEP_ALIVE_S:
                seen |= {kind: version for kind, version, _ in news}
                yield b"".join(frame for _, _, frame in news) or _KEEP_ALIVE
                # Snapshots may change while the client reads: the next iteration sends the newest one.
                last_sent = loop.time()
                continue
            with contextlib.suppress(TimeoutError):
                # Not wait_for, which on Python 3.11 swallows a cancellation that meets the event: the stream would
                # outlive its client.
                async with asyncio.timeout(_STOPPING_CHECK_S):
                    await changed.wait()

    async def _read(self) -> None:
        while True:
            # A cancelled poll would leave an answer on the control channel, for the next message to take as its own.
            poll = asyncio.ensure_future(self._poll())
            try:
                self._take(await asyncio.shield(poll))
            except Exception:
                # A telemetry failure must not stop the server, nor the next poll.
                logger.exception("Hive: the schedulers could not be asked for live events")
            await asyncio.sleep(self._interval_s)

    def _take(self, ranks: Sequence[Sequence[AnyEvent]]) -> None:
        self._version += 1
        for event in merged(ranks):
            kind = event.__struct_config__.tag
            assert isinstance(kind, str)
            frame = b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(event))
            if kind not in self._frames or self._frames[kind][1] != frame:
                self._frames[kind] = (self._version, frame)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
