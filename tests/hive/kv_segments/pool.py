"""A pool of slots without an engine: who owns which slot, and what is in it once the noted copies are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hive.server.eviction.node import NodeRecord
from hive.server.kv_segments.segment import EncodedSegment, HostCopy, SegmentKey
from hive.server.kv_segments.store import Move, Save, SegmentStore

Content = tuple[int, int, int]
"""Of a slot: the number of the encoding, which of its tokens, and the position that its key is rotated to."""


def key(name: str, tenant: str = "t", adapter: str = "") -> SegmentKey:
    return SegmentKey(tenant, adapter, name)


def record() -> NodeRecord:
    return NodeRecord("agent", "agent", 0, None)


def slots_of(placement: Any) -> list[int]:
    return [int(slot) for slot in placement.slots]


def contents(number: int, tokens: int, start: int) -> list[Content]:
    """What the slots of an encoding hold, its first token at ``start``."""
    return [(number, at, start + at) for at in range(tokens)]


@dataclass
class Copies:
    """What slots and copies on the host hold."""

    slots: list[Content | None]
    host: dict[HostCopy, list[Content | None]]

    def after(self, pending: Iterable[Move | Save]) -> Copies:
        """The same once the noted copies are made, in their order."""
        there = Copies(list(self.slots), {})
        # By identity: places on the host have no other.
        there.host = dict(self.host)
        for item in pending:
            if isinstance(item, Save):
                there.host[item.target] = [there.slots[slot] for slot in item.source.tolist()]
                continue
            target = item.target.tolist()
            if isinstance(item.source, HostCopy):
                read = there.host[item.source][item.offset : item.offset + len(target)]
            else:
                read = [there.slots[slot] for slot in item.source.tolist()]
            assert len(read) == len(target)
            for slot, content in zip(target, read, strict=True):
                there.slots[slot] = content and (content[0], content[1], content[2] + item.delta)
        return there


class Pool:
    """Slots with owners.  Like the engine's, it has a store evict when it runs out."""

    def __init__(self, size: int, capacity: int, host_capacity: int = 0) -> None:
        self.size = size
        self.free: list[int] = list(range(size))
        self.lent: set[int] = set()
        self.copies = Copies([None] * size, {})
        self.indexed: set[EncodedSegment] = set()
        """What the store says may be evicted."""
        self.gone: list[EncodedSegment] = []
        """What the store says left the device."""
        self.numbers = 0
        self.store = SegmentStore(
            self.allocate,
            self.take_back,
            capacity,
            host_capacity,
            on_free=self.gone.append,
            on_idle=self._on_idle,
        )

    def _on_idle(self, segment: EncodedSegment, idle: bool) -> None:
        if idle:
            self.indexed.add(segment)
        else:
            self.indexed.discard(segment)

    def allocate(self, tokens: int) -> torch.Tensor | None:
        if len(self.free) < tokens:
            self.store.free_placements(tokens - len(self.free))
        while len(self.free) < tokens and (segment := self.store.least_used()) is not None:
            self.store.evict(segment)
        if len(self.free) < tokens:
            return None
        # The slot that was freed last is the first to be used again, before anybody has read it.
        taken = [self.free.pop() for _ in range(tokens)]
        self.lent.update(taken)
        return torch.tensor(taken, dtype=torch.int64)

    def take_back(self, slots: torch.Tensor) -> None:
        for slot in slots.tolist():
            assert slot in self.lent, f"slot {slot} is freed twice"
            self.lent.remove(slot)
            self.free.append(slot)

    def forward(self) -> None:
        """Make the noted copies, as before a forward pass, which may then write to every slot that is free."""
        noted, self.store.pending = self.store.pending, []
        self.copies = self.copies.after(noted)
        for slot in self.free:
            self.copies.slots[slot] = None

    def clear(self) -> None:
        """All slots are free at once, as when the engine's caches are flushed."""
        self.free, self.lent = list(range(self.size)), set()
        self.store.clear()

    def encode(self, name: str, tokens: Sequence[int], start: int = 0) -> EncodedSegment | None:
        """Compute an encoding in new slots, and store it; None where there is no room."""
        slots = self.allocate(len(tokens))
        if slots is None:
            return None
        self.forward()
        self.numbers += 1
        for slot, content in zip(slots.tolist(), contents(self.numbers, len(tokens), start), strict=True):
            self.copies.slots[slot] = content
        if not self.store.room_for(len(tokens)):
            self.take_back(slots)
            return None
        return self.store.put(key(name), tokens, start, slots, record())
