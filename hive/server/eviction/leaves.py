"""An index of the evictable leaves of a radix tree that finds those of least worth without visiting every leaf.

SGLang keeps its evictable leaves in a ``set`` and builds a heap over all of them at each eviction.  This index takes
the place of that set.  It also keeps the class and the last use of every leaf in arrays, so that the worth of ten
thousand leaves is one table look-up.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, MutableSet
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hive.server.eviction.base import EvictionPolicy, Weigh
from hive.server.eviction.node import NodeRecord, Session

_FIRST_CHOICE = 64
"""Leaves that are sorted first; most evictions need no more."""


_NO_SESSION = -1


class Leaf(Protocol):
    """A node of the tree, as far as the index needs it."""

    id: int
    hive: NodeRecord


L = TypeVar("L", bound=Leaf)


class LeafIndex(MutableSet[L]):
    """A set of leaves that yields those of least worth first.

    A record must not change while its leaf is in the index.  The engine guarantees that: it locks the nodes that a
    request has matched, and locked nodes are not evictable.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._slots: dict[int, int] = {}
        self._leaves: list[L | None] = []
        self._taken = np.zeros(0, np.bool_)
        self._classes = np.zeros(0, np.int32)
        self._used = np.zeros(0, np.int64)
        self._sessions = np.zeros(0, np.int64)
        self._free: list[int] = []
        self._arrivals: list[L] | None = None
        """Leaves that were added during a running eviction; None outside of one."""

    def __contains__(self, leaf: object) -> bool:
        return getattr(leaf, "id", None) in self._slots

    def __iter__(self) -> Iterator[L]:
        return iter([leaf for leaf in self._leaves if leaf is not None])

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, leaf: L) -> None:
        if leaf.id in self._slots:
            return
        if not self._free:
            self._grow()
        slot = self._slots[leaf.id] = self._free.pop()
        self._leaves[slot] = leaf
        self._taken[slot] = True
        self._classes[slot], self._used[slot], self._sessions[slot] = self._row(leaf.hive)
        if self._arrivals is not None:
            self._arrivals.append(leaf)

    def discard(self, leaf: L) -> None:
        slot = self._slots.pop(leaf.id, None)
        if slot is not None:
            self._leaves[slot] = None
            self._taken[slot] = False
            self._free.append(slot)

    def clear(self) -> None:
        for leaf in self:
            self.discard(leaf)

    def session_ended(self, session: Session) -> None:
        """Update the class of the leaves that only this session used; it has ended."""
        for slot in np.flatnonzero(self._taken & (self._sessions == session.number)):
            leaf = self._leaves[slot]
            assert leaf is not None
            self._classes[slot] = self._policy.class_of(leaf.hive)

    def outdated(self) -> list[L]:
        """Return leaves whose record changed while they were in the index; empty unless the caller broke the rule."""
        rows = zip(self._leaves, self._classes, self._used, self._sessions, strict=True)
        return [leaf for leaf, *row in rows if leaf is not None and tuple(row) != self._row(leaf.hive)]

    def victims(self, clock: int, now: float) -> Generator[L]:
        """Yield leaves in the order of eviction; the caller removes each one before it asks for the next.

        A parent that becomes a leaf meanwhile is inserted into the order.
        """
        weigh = self._policy.weighing(clock, now)
        slots = np.flatnonzero(self._taken)
        worth = weigh(self._classes[slots], self._used[slots])
        used = self._used[slots]
        self._arrivals = []
        late: list[tuple[float, int, int, L]] = []
        # Most parents that become leaves belong to the same dialogue, and were used with each other.
        weighed: dict[tuple[int, int], float] = {}
        try:
            for part in _ordered_parts(worth, used):
                for at in part:
                    leaf = self._leaves[slots[at]]
                    rank = (float(worth[at]), int(used[at]))
                    while late and (late[0][0], late[0][1]) < rank:
                        yield heapq.heappop(late)[3]
                        self._take_arrivals(late, weigh, weighed)
                    if leaf is not None:
                        yield leaf
                        self._take_arrivals(late, weigh, weighed)
            while late:
                yield heapq.heappop(late)[3]
                self._take_arrivals(late, weigh, weighed)
        finally:
            self._arrivals = None

    def _row(self, record: NodeRecord) -> tuple[int, int, int]:
        session = record.session.number if record.session is not None else _NO_SESSION
        return self._policy.class_of(record), record.used, session

    def _take_arrivals(
        self, late: list[tuple[float, int, int, L]], weigh: Weigh, weighed: dict[tuple[int, int], float]
    ) -> None:
        assert self._arrivals is not None
        for leaf in self._arrivals:
            slot = self._slots[leaf.id]
            key = int(self._classes[slot]), leaf.hive.used
            worth = weighed.get(key)
            if worth is None:
                at = np.array([slot])
                worth = weighed[key] = float(weigh(self._classes[at], self._used[at])[0])
            heapq.heappush(late, (worth, leaf.hive.used, leaf.id, leaf))
        self._arrivals.clear()

    def _grow(self) -> None:
        old, new = len(self._leaves), max(64, 2 * len(self._leaves))
        self._leaves += [None] * (new - old)
        for array in (self._taken, self._classes, self._used, self._sessions):
            array.resize(new, refcheck=False)
        self._free += range(new - 1, old - 1, -1)


def _ordered_parts(worth: NDArray[np.float64], used: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield positions by (worth, last use), ties by position; sort the bulk of them only if the caller gets there."""
    if len(worth) <= _FIRST_CHOICE:
        yield np.lexsort((used, worth))
        return
    threshold = np.partition(worth, _FIRST_CHOICE)[_FIRST_CHOICE]
    first = worth <= threshold
    for part in (np.flatnonzero(first), np.flatnonzero(~first)):
        yield part[np.lexsort((used[part], worth[part]))]
