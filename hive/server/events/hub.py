"""Events on their way to browsers: one subscription to all schedulers, and a stream for each client.

Only the last picture is kept, and each client is given what changed since it was given something: one that reads
slowly skips pictures, and nothing piles up for it.  While there are no clients there is no subscription, and the
schedulers make no pictures.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import zmq
import zmq.asyncio

from hive.server.events.endpoint import to_connect
from hive.server.events.event import TOPIC, Batch
from hive.server.events.merge import merged

logger = logging.getLogger(__name__)

MAX_CLIENTS = 32
KEEP_ALIVE_S = 10.0
"""Silence after which a client is told that the stream is alive."""

_GLANCE_S = 1.0
"""Between two looks at whether the server is stopping."""

_PATIENCE_S = 1.0
"""For so long the first picture waits until every rank has sent its part."""

_HIGH_WATER = 16
_RETRY = b"retry: 2000\n\n"
_KEEP_ALIVE = b": alive\n\n"


class TooManyClients(Exception):
    """All places are taken."""


class EventHub:
    """Listens to the schedulers on ``endpoints`` for as long as somebody listens to it.

    Belongs to one event loop.  ``stopping`` tells whether the server is about to end: streams then end, for a server
    that shuts down politely waits for them.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        max_clients: int = MAX_CLIENTS,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._endpoints = [to_connect(endpoint) for endpoint in endpoints]
        self._max_clients = max_clients
        self._stopping = stopping
        self._reader: asyncio.Task[None] | None = None
        self._ranks: dict[int, Batch] = {}
        self._patient_until = 0.0
        self._numbers: dict[int, int] = {}
        self._frames: dict[str, tuple[int, bytes]] = {}
        """By kind of event: its version, and its frame of the stream."""
        self._version = 0
        self._changed = asyncio.Event()
        self.clients = 0
        self.missed = 0
        """Messages of schedulers that did not arrive, because this process was too slow for them."""

    def join(self) -> AsyncIterator[bytes]:
        """A stream for one more client, to be iterated and closed.

        Raises:
            TooManyClients: when all places are taken.
        """
        if self.clients >= self._max_clients:
            raise TooManyClients(f"{self._max_clients} clients listen already")
        self.clients += 1
        if self._reader is None:
            self._patient_until = time.monotonic() + _PATIENCE_S
            self._reader = asyncio.create_task(self._read())
        return self._stream()

    async def leave(self) -> None:
        """A client of :meth:`join` is gone; the last one ends the subscription."""
        self.clients -= 1
        if self.clients == 0 and self._reader is not None:
            reader, self._reader = self._reader, None
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
            self._ranks.clear()
            self._numbers.clear()
            self._frames.clear()

    async def _stream(self) -> AsyncIterator[bytes]:
        """Frames of server-sent events, several at a time."""
        loop = asyncio.get_running_loop()
        seen: dict[str, int] = {}
        spoke = loop.time()
        yield _RETRY
        while not self._stopping():
            changed = self._changed
            news = [
                (kind, version, frame)
                for kind, (version, frame) in self._frames.items()
                if seen.get(kind) != version
            ]
            if news or loop.time() - spoke >= KEEP_ALIVE_S:
                seen |= {kind: version for kind, version, _ in news}
                yield b"".join(frame for _, _, frame in news) or _KEEP_ALIVE
                # The next look is at what is there then: what came and went meanwhile is skipped.
                spoke = loop.time()
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _GLANCE_S)

    async def _read(self) -> None:
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        socket.set_hwm(_HIGH_WATER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.subscribe(TOPIC)
        decoder = msgspec.msgpack.Decoder(Batch)
        try:
            for endpoint in self._endpoints:
                socket.connect(endpoint)
            while True:
                _, number, payload = await socket.recv_multipart()
                self._take(int.from_bytes(number, "big"), decoder.decode(payload))
        except (ValueError, zmq.ZMQError):
            logger.exception("Hive: live events have ended")
        finally:
            socket.close()
            context.term()

    def _take(self, number: int, batch: Batch) -> None:
        expected = self._numbers.get(batch.rank, number)
        # A scheduler that was started anew begins at 0.
        self.missed += max(0, number - expected)
        self._numbers[batch.rank] = number + 1
        self._ranks[batch.rank] = batch
        if len(self._ranks) < len(self._endpoints) and time.monotonic() < self._patient_until:
            return  # the first picture would be of some ranks only
        self._version += 1
        for event in merged(self._ranks.values()):
            kind = event.__struct_config__.tag
            assert isinstance(kind, str)
            frame = b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(event))
            if kind not in self._frames or self._frames[kind][1] != frame:
                self._frames[kind] = (self._version, frame)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
