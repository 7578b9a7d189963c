"""Events on their way out of a scheduler: a ZeroMQ socket that others subscribe to.

The scheduler's thread never waits here.  Messages are handed to ZeroMQ's own thread, which drops those of a
subscriber that is too slow; the gap in the sequence numbers tells it how many.  The socket is XPUB, a PUB that sees
subscriptions come and go: while nobody listens, no picture is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import zmq

from hive.server.events.event import TOPIC, AnyEvent, Batch

INTERVAL_S = 0.5
"""Between two pictures, at the least."""

HIGH_WATER = 64
"""Messages that are kept for a slow subscriber."""


class EventPublisher:
    """Publishes on ``endpoint``, which it binds.

    Raises:
        OSError: when the address is taken, or none of this machine.
    """

    def __init__(
        self,
        endpoint: str,
        rank: int = 0,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._interval_s = interval_s
        self._clock = clock
        self._next = 0.0
        self._topics: set[bytes] = set()
        self._encoder = msgspec.msgpack.Encoder()
        self.sequence = 0
        """Of the next message."""
        # A context of its own: the engine's sockets, and their settings, are none of our business.
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.set_hwm(HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if endpoint.startswith("tcp://["):
            self._socket.setsockopt(zmq.IPV6, 1)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"cannot publish events on {endpoint}: {error}") from None

    def due(self) -> bool:
        """Whether it is time for the next picture, and somebody listens; asked in each loop of the scheduler."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._interval_s
        self._read_subscriptions()
        return bool(self._topics)

    def publish(self, events: Sequence[AnyEvent]) -> None:
        """Send one batch to all that listen."""
        payload = self._encoder.encode(Batch(time.time(), self._rank, list(events)))
        number = self.sequence.to_bytes(8, "big")
        self._socket.send_multipart((TOPIC, number, payload), zmq.NOBLOCK)
        self.sequence += 1

    def close(self) -> None:
        """Let go of the address."""
        self._socket.close()
        self._context.term()

    def _read_subscriptions(self) -> None:
        """XPUB tells of the first subscriber to a topic and of the last one that leaves, however it leaves."""
        while self._socket.poll(0, zmq.POLLIN):
            message = self._socket.recv(zmq.NOBLOCK)
            topic = message[1:]
            if message[:1] == b"\x01":
                self._topics.add(topic)
            elif message[:1] == b"\x00":
                self._topics.discard(topic)
