"""The segment store: the stored encodings, their slots in the engine's pool, and their readers.

The store owns slots of the pool besides those of the radix tree.  It decides at once and lets the engine move KV
later: every copy is appended to :attr:`SegmentStore.pending`, and the engine makes the copies in order before its next
forward pass.  So one copy may read a slot that is then freed and written by a later copy, and nothing has to wait.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from hive.server.eviction.node import NodeRecord
from hive.server.integrity import IntegrityError, expect
from hive.server.kv_segments.plan import Piece
from hive.server.kv_segments.segment import EncodedSegment, HostCopy, Placement, SegmentKey

Allocate = Callable[[int], torch.Tensor | None]
"""Allocates a number of slots of the pool, int64 ``[n]``; returns None if eviction cannot free enough."""


@dataclass(frozen=True, slots=True)
class Move:
    """KV to copy before the next forward pass."""

    target: torch.Tensor
    """int64 ``[n]``: slots to write."""
    source: torch.Tensor | HostCopy
    """int64 ``[n]``: slots to read, which may be free by now; or a copy on the host."""
    delta: int = 0
    """Positions by which keys are moved."""
    offset: int = 0
    """First token to copy from a copy on the host."""


@dataclass(frozen=True, slots=True)
class Save:
    """KV to copy to the host before the next forward pass."""

    target: HostCopy
    source: torch.Tensor
    """int64 ``[n]``: slots to read, which may be free by now."""


@dataclass(slots=True)
class Statistics:
    """Counters since start."""

    stored: int = 0
    """Encodings stored."""
    evicted: int = 0
    """Encodings evicted from the device."""
    placed_tokens: int = 0
    """Tokens placed in requests, shared or not."""
    copied_tokens: int = 0
    """Placed tokens that had to be copied to their position first."""
    hits: int = 0
    refused: int = 0
    """Placements refused because the store was full."""


@dataclass(eq=False)
class SegmentStore:
    """Stores encodings within a capacity; see the module's docstring.  Only one thread may use it."""

    allocate: Allocate
    free: Callable[[torch.Tensor], None]
    capacity: int
    """Maximum tokens on the device, placements included."""
    host_capacity: int = 0
    """Maximum tokens on the host."""
    on_free: Callable[[EncodedSegment], None] = lambda segment: None
    """Called with each encoding that leaves the device."""
    on_idle: Callable[[EncodedSegment, bool], None] = lambda segment, idle: None
    """Called with True when an encoding on the device becomes evictable, and with False when it no longer is."""
    pending: list[Move | Save] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)

    def __post_init__(self) -> None:
        self._segments: dict[SegmentKey, EncodedSegment] = {}
        self._leaving: dict[int, EncodedSegment] = {}
        """Dropped encodings that are still read, by id."""
        self._next = -1
        self._clock = 0
        self._on_device = 0
        self._leased = 0
        self._on_host = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[EncodedSegment]:
        return iter([*self._segments.values(), *self._leaving.values()])

    @property
    def evictable(self) -> int:
        """Tokens on the device that no request reads."""
        return self._on_device - self._leased

    @property
    def leased(self) -> int:
        """Tokens on the device that some request reads."""
        return self._leased

    @property
    def on_host(self) -> int:
        """Tokens on the host."""
        return self._on_host

    # Storing and dropping.

    def find(self, key: SegmentKey) -> EncodedSegment | None:
        """Return the encoding of a key, wherever it is; None if there is none."""
        return self._segments.get(key)

    def room_for(self, tokens: int) -> bool:
        """Whether an encoding of ``tokens`` can be stored; evicts others if needed."""
        if tokens > self.capacity - self._leased:
            return False
        self._make_room(tokens)
        return self._on_device + tokens <= self.capacity

    def put(
        self, key: SegmentKey, tokens: Sequence[int], start: int, slots: torch.Tensor, record: NodeRecord
    ) -> EncodedSegment:
        """Store an encoding, after :meth:`room_for` has returned True, and take over its slots.

        Args:
            key: must be unused.
            tokens: at least one.
            start: position of the first token, to which its key is rotated.
            slots: int64 ``[tokens]``; the store owns them from now on.
            record: its producer and its uses.

        Raises:
            ValueError: if an argument breaks these rules.
        """
        if key in self._segments or len(slots) != len(tokens) or not len(tokens):
            raise ValueError(f"{key} cannot be stored with {len(tokens)} tokens in {len(slots)} slots")
        self._clock += 1
        segment = EncodedSegment(
            self._next, key, array("q", tokens), record, Placement(start, slots, used=self._clock)
        )
        self._next -= 1
        self._segments[key] = segment
        self._on_device += len(segment)
        self.statistics.stored += 1
        self.on_idle(segment, True)
        return segment

    def drop(self, key: SegmentKey) -> bool:
        """Remove an encoding, so that it is not found any more; return whether there was one."""
        segment = self._segments.get(key)
        if segment is None:
            return False
        if segment.on_device and not segment.own.leases:
            self.on_idle(segment, False)
        self._forget_host(segment)
        self._let_go(segment)
        return True

    def clear(self) -> None:
        """Forget all encodings, because the engine has cleared the pool."""
        for segment in list(self):
            if segment.on_device:
                self.on_idle(segment, False)
        self._segments.clear()
        self._leaving.clear()
        self.pending.clear()
        self._on_device = self._leased = self._on_host = 0

    # Reading.

    def lease(self, segment: EncodedSegment, start: int) -> Placement | None:
        """Return a placement of the encoding with its first token at ``start``, for one reader.

        Returns None if there is no space for a copy, or if the encoding was evicted since it was found; use
        :meth:`holding` to prevent that.
        """
        self._clock += 1
        placement = segment.own if segment.on_device and segment.own.start == start else None
        placement = placement or segment.elsewhere.get(start) or self._place(segment, start)
        if placement is None:
            self.statistics.refused += 1
            return None
        self._read(segment, placement)
        self.statistics.placed_tokens += len(segment)
        return placement

    def release(self, segment: EncodedSegment, placement: Placement) -> None:
        """Return a placement that one reader no longer needs."""
        if placement.leases < 1:
            raise IntegrityError(f"{segment.key} was released more often than it was leased")
        placement.leases -= 1
        if placement.leases == 0:
            self._leased -= len(segment)
            if placement is segment.own and not segment.dropped:
                self.on_idle(segment, True)
        if segment.dropped:
            self._free_idle(segment)
            if not segment.leases:
                self._leaving.pop(segment.id, None)

    def _read(self, segment: EncodedSegment, placement: Placement) -> None:
        if placement.leases == 0:
            self._leased += len(segment)
            if placement is segment.own and not segment.dropped:
                self.on_idle(segment, False)
        placement.leases += 1
        # A use of any placement counts for the encoding, of which the placement in its frame is the one that is kept.
        placement.used = segment.own.used = self._clock

    @contextmanager
    def holding(self, segments: Sequence[EncodedSegment]) -> Iterator[None]:
        """Keep encodings where they are, on the device in their frames or on the host, within this context."""
        held = [segment for segment in segments if segment.on_device]
        copies = [segment.host for segment in segments if segment.host is not None]
        for segment in held:
            self._read(segment, segment.own)
        for copy in copies:
            copy.leases += 1
        try:
            yield
        finally:
            for copy in copies:
                copy.leases -= 1
            for segment in held:
                self.release(segment, segment.own)

    def _place(self, segment: EncodedSegment, start: int) -> Placement | None:
        """Return a new placement, copied from the frame or the host; None if it is at neither, or if space is short."""
        source = segment.own.slots if segment.on_device else segment.host
        if source is None:
            return None
        # Making space must neither evict what is to be copied nor replace it on the host.
        with self.holding([segment]):
            slots = self._slots(len(segment))
        if slots is None:
            return None
        self.pending.append(Move(slots, source, start - segment.own.start))
        placement = segment.elsewhere[start] = Placement(start, slots)
        self._on_device += len(segment)
        self.statistics.copied_tokens += len(segment)
        return placement

    def _slots(self, tokens: int) -> torch.Tensor | None:
        return self.allocate(tokens) if self.room_for(tokens) else None

    # Eviction.

    def idle_placements(self) -> list[tuple[int, EncodedSegment, Placement]]:
        """Return unread placements outside of frames, least recently used first; they are cheap to make again."""
        found = [
            (placement.used, segment, placement)
            for segment in self
            for placement in segment.elsewhere.values()
            if placement.leases == 0
        ]
        return sorted(found, key=lambda item: (item[0], item[1].id))

    def free_placements(self, wanted: int) -> int:
        """Free unread placements outside of frames until ``wanted`` tokens are free; return the number freed."""
        freed = 0
        for _, segment, placement in self.idle_placements():
            if freed >= wanted:
                break
            freed += self._free_copy(segment, placement)
        return freed

    def evict(self, segment: EncodedSegment) -> int:
        """Free an encoding that no request reads in its frame; return the number of tokens freed."""
        if segment.own.leases or not segment.on_device:
            raise IntegrityError(
                f"{segment.key} cannot be evicted: it is being read, or is not on the device"
            )
        before = self._on_device
        if segment.host is None and self._host_room_for(segment):
            segment.host = HostCopy()
            self._on_host += len(segment)
            self.pending.append(Save(segment.host, segment.own.slots))
        self.statistics.evicted += 1
        self._free_own(segment)
        if segment.host is None:
            self._let_go(segment)
        # Counts the placements of encodings that were dropped from the host to save this one, too.
        return before - self._on_device

    def least_used(self) -> EncodedSegment | None:
        """Return the least recently used evictable encoding; None if there is none."""
        idle = [s for s in self._segments.values() if s.on_device and not s.own.leases]
        return min(idle, key=lambda segment: (segment.own.used, -segment.id), default=None)

    def _make_room(self, tokens: int) -> None:
        """Free space within the capacity: first extra placements, then the least recently used encodings."""
        excess = self._on_device + tokens - self.capacity
        if excess > 0:
            excess -= self.free_placements(excess)
        while excess > 0 and (segment := self.least_used()) is not None:
            excess -= self.evict(segment)

    def _host_room_for(self, segment: EncodedSegment) -> bool:
        """Whether an encoding can be saved to the host; drops the least recently used copies there if needed."""
        saved = [s for s in self._segments.values() if s.host is not None and s.host.leases == 0]
        if self._on_host - sum(map(len, saved)) + len(segment) > self.host_capacity:
            return False
        for other in sorted(saved, key=lambda s: s.own.used):
            if self._on_host + len(segment) <= self.host_capacity:
                break
            self._forget_host(other)
            if not other.on_device:
                self._let_go(other)
        return True

    def _let_go(self, segment: EncodedSegment) -> None:
        """Remove an encoding from the index; placements that are being read live until they are released."""
        self._segments.pop(segment.key, None)
        segment.dropped = True
        self._free_idle(segment)
        if segment.leases:
            self._leaving[segment.id] = segment

    def _free_own(self, segment: EncodedSegment) -> None:
        slots = segment.own.slots
        if not segment.dropped:
            self.on_idle(segment, False)
        self.on_free(segment)
        segment.own.slots = slots[:0]
        self._on_device -= len(slots)
        self.free(slots)

    def _free_copy(self, segment: EncodedSegment, placement: Placement) -> int:
        del segment.elsewhere[placement.start]
        self._on_device -= len(placement.slots)
        self.free(placement.slots)
        return len(placement.slots)

    def _free_idle(self, segment: EncodedSegment) -> None:
        """Free the unread placements of a dropped encoding."""
        for placement in [copy for copy in segment.elsewhere.values() if copy.leases == 0]:
            self._free_copy(segment, placement)
        if segment.on_device and segment.own.leases == 0:
            self._free_own(segment)

    def _forget_host(self, segment: EncodedSegment) -> None:
        if segment.host is not None:
            self._on_host -= len(segment)
            segment.host = None

    # Accounting.

    def summary(self) -> dict[str, Any]:
        """Return state and counters since start, as JSON-safe values."""
        return {
            "segments": len(self._segments),
            "tokens": self._on_device,
            "capacity_tokens": self.capacity,
            "leased_tokens": self._leased,
            "host_tokens": self._on_host,
            **asdict(self.statistics),
        }

    def slots(self) -> list[torch.Tensor]:
        """Return the slots of everything on the device."""
        return [placement.slots for segment in self for placement in _placements(segment)]

    def check_integrity(self) -> None:
        """Check that the counters agree with the contents.

        Raises:
            IntegrityError: with what is wrong.
        """
        held: list[int] = []
        leased = on_host = 0
        for segment in self:
            for placement in _placements(segment):
                held += placement.slots.tolist()
                if placement.leases:
                    leased += len(segment)
                expect(
                    len(placement.slots) in (0, len(segment)),
                    f"{segment.key} has {len(placement.slots)} slots",
                )
            on_host += len(segment) if segment.host is not None else 0
            expect(
                not segment.dropped or segment.leases,
                f"{segment.key} is dropped and unread, but was not freed",
            )
            somewhere = segment.dropped or segment.on_device or segment.host is not None
            expect(somewhere, f"{segment.key} is neither on the device nor on the host")
        for what, counted, found in (
            ("tokens on the device", self._on_device, len(held)),
            ("tokens that are read", self._leased, leased),
            ("tokens on the host", self._on_host, on_host),
            ("distinct slots", len(set(held)), len(held)),
        ):
            expect(counted == found, f"{what}: {counted} counted, {found} found")
        over = f"{self._on_device} tokens on the device exceed the capacity of {self.capacity}"
        expect(self._on_device <= self.capacity, over)


def _placements(segment: EncodedSegment) -> Iterable[Placement]:
    return (segment.own, *segment.elsewhere.values())


def copy_of(piece: Piece[EncodedSegment], slots: torch.Tensor) -> Move:
    """Return the copy that fills a request's own slots with a piece for which the store had no space."""
    segment = piece.source
    assert segment is not None
    delta = piece.position - piece.offset - segment.own.start
    if segment.on_device:
        return Move(slots, segment.own.slots[piece.offset : piece.offset + len(piece)], delta)
    assert segment.host is not None
    return Move(slots, segment.host, delta, piece.offset)
