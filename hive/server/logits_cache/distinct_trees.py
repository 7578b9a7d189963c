"""The distinct-sampling trees of all states, within a byte budget."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from hive.server.integrity import expect
from hive.server.logits_cache.distinct import DistinctSample, DistinctTree
from hive.server.logits_cache.sampling import SamplingRule

_Key: TypeAlias = tuple[bytes, SamplingRule]


class DistinctTrees:
    """Trees by state within a byte budget; forgets the least recently sampled.

    A forgotten state starts over: its next sample may equal an earlier one.  Other states are not affected.
    Not thread-safe: only the scheduler's thread uses it.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self.forgotten = 0
        """Trees dropped to stay within the budget."""
        self._trees: OrderedDict[_Key, DistinctTree] = OrderedDict()
        self._sizes: dict[_Key, int] = {}

    def __len__(self) -> int:
        return len(self._trees)

    def sample(self, digest: bytes, rule: SamplingRule, numbers: Callable[[int], float]) -> DistinctSample:
        """Begin the next sample of a state, and mark the state as the most recently used.

        ``digest`` identifies the state and whatever else decides where an output ends (see :class:`DistinctTree`).
        """
        key = (digest, rule)
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = DistinctTree(rule, partial(self._account, key))
        self._trees.move_to_end(key)
        sample = tree.sample(numbers)
        self._account(key, tree)
        return sample

    def resize(self, capacity_bytes: int) -> None:
        """Change the budget, possibly to zero, and forget what exceeds it."""
        self.capacity_bytes = max(0, capacity_bytes)
        self._evict()

    def clear(self) -> None:
        """Drop everything, after a change of weights or on the operator's request; samples in flight continue."""
        self._trees.clear()
        self._sizes.clear()
        self.nbytes = 0

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every tree is consistent, the bytes add up and the budget holds.

        Trees with a sample in flight are kept even above the budget.
        """
        for tree in self._trees.values():
            tree.check_integrity()
        expect(self._sizes == {key: tree.nbytes for key, tree in self._trees.items()}, "sizes")
        expect(self.nbytes == sum(self._sizes.values()), "bytes")
        idle = any(not tree.in_flight for tree in self._trees.values())
        expect(self.nbytes <= self.capacity_bytes or not idle, "over budget")

    def _account(self, key: _Key, tree: DistinctTree) -> None:
        if self._trees.get(key) is not tree:
            return  # forgotten while its sample was in flight
        self.nbytes += tree.nbytes - self._sizes.get(key, 0)
        self._sizes[key] = tree.nbytes
        self._evict()

    def _evict(self) -> None:
        if self.nbytes <= self.capacity_bytes:
            return
        for oldest, candidate in list(self._trees.items()):
            if not candidate.in_flight:
                del self._trees[oldest]
                self.nbytes -= self._sizes.pop(oldest)
                self.forgotten += 1
                if self.nbytes <= self.capacity_bytes:
                    return
