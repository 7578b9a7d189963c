"""The index of leaves against a plain set that is sorted for every eviction."""

from __future__ import annotations

import random
from contextlib import closing

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from hive.server.eviction.base import EvictionPolicy, Weigh
from hive.server.eviction.leaves import LeafIndex
from hive.server.eviction.node import NodeRecord, Session


class HitsPolicy(EvictionPolicy):
    """Worth is the number of hits; the dead have less than none.  There are many ties."""

    name = "hits"
    trims = False

    def class_of(self, node: NodeRecord) -> int:
        return -1 if node.dead else node.hits

    def weighing(self, clock: int, now: float) -> Weigh:
        def weigh(classes: NDArray[np.int32], used: NDArray[np.int64]) -> NDArray[np.float64]:
            assert classes.dtype == np.int32
            assert used.dtype == np.int64
            assert (used <= clock).all()
            return classes.astype(np.float64)

        return weigh


class Leaf:
    def __init__(self, id: int, hits: int = 0, used: int = 0, session: Session | None = None) -> None:
        self.id = id
        self.hive = NodeRecord("a", "a", used, session, hits)

    @property
    def rank(self) -> tuple[int, int]:
        """(worth, last use)"""
        return HitsPolicy().class_of(self.hive), self.hive.used


CLOCK = 1000


def order(index: LeafIndex[Leaf]) -> list[int]:
    """Ids of all leaves, as they would go."""
    with closing(index.victims(CLOCK, 0.0)) as victims:
        return [leaf.id for leaf in victims]


def test_leaves_go_by_worth_and_then_by_last_use() -> None:
    index: LeafIndex[Leaf] = LeafIndex(HitsPolicy())
    for id, (hits, used) in enumerate([(1, 5), (0, 9), (1, 3), (0, 2)]):
        index.add(Leaf(id, hits, used))
    assert order(index) == [3, 1, 2, 0]


def test_an_empty_index_has_no_victims() -> None:
    index: LeafIndex[Leaf] = LeafIndex(HitsPolicy())
    assert order(index) == []
    assert len(index) == 0
    assert Leaf(0) not in index
    assert None not in index


def test_it_is_a_set_as_the_engine_uses_one() -> None:
    index: LeafIndex[Leaf] = LeafIndex(HitsPolicy())
    leaf = Leaf(7)
    index.add(leaf)
    index.add(leaf)
    assert len(index) == 1
    assert leaf in index
    assert list(index) == [leaf]
    index.remove(leaf)
    index.discard(leaf)
    with pytest.raises(KeyError):
        index.remove(leaf)
    assert len(index) == 0


def test_a_leaf_that_comes_back_is_classed_anew() -> None:
    index: LeafIndex[Leaf] = LeafIndex(HitsPolicy())
    leaf = Leaf(0)
    index.add(leaf)
    index.add(Leaf(1, hits=1))
    index.discard(leaf)
    leaf.hive.hits, leaf.hive.used = 2, 7
    index.add(leaf)
    assert order(index) == [1, 0]


def test_the_end_of_a_session_concerns_its_own_leaves_alone() -> None:
    index: LeafIndex[Leaf] = LeafIndex(HitsPolicy())
    ending, other = Session(1), Session(2)
    for id, session in enumerate([None, ending, other, ending]):
        index.add(Leaf(id, hits=1, used=id, session=session))
    ending.ended = True
    index.session_ended(ending)
    assert order(index) == [1, 3, 0, 2]


def test_a_parent_takes_its_place_in_the_order_on_the_way() -> None:
    index: LeafIndex[Leaf] = LeafIndex(HitsPolicy())
    for id in range(4):
        index.add(Leaf(id, hits=id, used=50))
    parents = {0: Leaf(10, hits=0, used=60), 10: Leaf(11, hits=2, used=40), 2: Leaf(12, hits=1, used=1)}
    gone = []
    for leaf in index.victims(CLOCK, 0.0):
        index.discard(leaf)
        gone.append(leaf.id)
        if leaf.id in parents:
            index.add(parents[leaf.id])
    # 12 is worth less than what went before it: it goes at once.
    assert gone == [0, 10, 1, 11, 2, 12, 3]
    assert len(index) == 0


def test_what_is_added_after_an_eviction_does_not_haunt_the_next_one() -> None:
    index: LeafIndex[Leaf] = LeafIndex(HitsPolicy())
    for id in range(3):
        index.add(Leaf(id, used=id))
    with closing(index.victims(CLOCK, 0.0)) as victims:
        first = next(victims)
        index.discard(first)
    passing = Leaf(9)
    index.add(passing)
    index.discard(passing)
    assert order(index) == [1, 2]


@pytest.mark.parametrize("count", [63, 64, 65, 66, 500, 3000])
def test_the_order_is_whole_however_many_leaves_there_are(count: int) -> None:
    chance = random.Random(count)
    index: LeafIndex[Leaf] = LeafIndex(HitsPolicy())
    leaves = [Leaf(id, chance.randrange(4), chance.randrange(20)) for id in range(count)]
    for leaf in leaves:
        index.add(leaf)
    by_id = {leaf.id: leaf for leaf in leaves}
    assert [by_id[id].rank for id in order(index)] == sorted(leaf.rank for leaf in leaves)
    assert sorted(order(index)) == list(range(count))


def test_slots_are_used_again() -> None:
    index: LeafIndex[Leaf] = LeafIndex(HitsPolicy())
    for id in range(10_000):
        index.add(Leaf(id, used=id % 7))
        if id >= 60:
            index.discard(next(iter(index)))
    assert len(index) == 60
    assert len(index._leaves) == 64
    assert len(order(index)) == 60


class LeafMachine(RuleBasedStateMachine):
    """Two indexes of equal leaves, and a plain dict beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.indexes: list[LeafIndex[Leaf]] = [LeafIndex(HitsPolicy()) for _ in range(2)]
        self.leaves: dict[int, tuple[Leaf, Leaf]] = {}
        self.sessions = {number: Session(number) for number in range(3)}
        self.next_id = 0

    hits = st.integers(0, 3)
    used = st.integers(0, 5)
    session = st.sampled_from([None, 0, 1, 2])
    seed = st.integers(0, 2**16)

    @rule(hits=hits, used=used, session=session)
    def add(self, hits: int, used: int, session: int | None) -> None:
        of = self.sessions[session] if session is not None else None
        # Equal in all that counts, and two objects at two addresses.
        twins = Leaf(self.next_id, hits, used, of), Leaf(self.next_id, hits, used, of)
        self.leaves[self.next_id] = twins
        self.next_id += 1
        for index, leaf in zip(self.indexes, twins, strict=True):
            index.add(leaf)

    @rule(count=st.integers(1, 150), seed=seed)
    def add_many(self, count: int, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(count):
            self.add(chance.randrange(4), chance.randrange(6), chance.choice([None, 0, 1, 2]))

    @rule(seed=seed)
    def add_again(self, seed: int) -> None:
        if self.leaves:
            self.in_both("add", random.Random(seed).choice(sorted(self.leaves)))

    @rule(seed=seed)
    def discard(self, seed: int) -> None:
        if self.leaves:
            id = random.Random(seed).choice(sorted(self.leaves))
            self.in_both("discard", id)
            del self.leaves[id]

    @rule()
    def discard_a_stranger(self) -> None:
        for index in self.indexes:
            index.discard(Leaf(-1))

    @rule()
    def clear(self) -> None:
        for index in self.indexes:
            index.clear()
        self.leaves.clear()

    @rule(session=st.integers(0, 2))
    def end_session(self, session: int) -> None:
        ended = self.sessions[session]
        ended.ended = True
        for index in self.indexes:
            index.session_ended(ended)
        self.sessions[session] = Session(self.next_id + 3)
        self.next_id += 1

    @rule(count=st.integers(1, 200), seed=seed)
    def evict(self, count: int, seed: int) -> None:
        chance = random.Random(seed)
        walks = [index.victims(CLOCK, 0.0) for index in self.indexes]
        for _ in range(count):
            victims = [next(walk, None) for walk in walks]
            if victims[0] is None:
                assert victims == [None, None]
                assert not self.leaves
                break
            ours, theirs = victims
            assert ours is not None
            assert theirs is not None
            assert ours.id == theirs.id, "ties are broken by chance"
            assert ours.rank == min(leaf.rank for leaf, _ in self.leaves.values())
            self.in_both("discard", ours.id)
            del self.leaves[ours.id]
            while chance.random() < 0.3:
                # Parents that have become leaves.
                self.add(chance.randrange(4), chance.randrange(6), chance.choice([None, 0, 1, 2]))
        for walk in walks:
            walk.close()

    def in_both(self, method: str, id: int) -> None:
        for index, leaf in zip(self.indexes, self.leaves[id], strict=True):
            getattr(index, method)(leaf)

    @invariant()
    def both_hold_the_leaves(self) -> None:
        for number, index in enumerate(self.indexes):
            assert len(index) == len(self.leaves)
            assert {leaf.id for leaf in index} == self.leaves.keys()
            assert all(twins[number] in index for twins in self.leaves.values())

    @invariant()
    def both_are_in_order(self) -> None:
        ours, theirs = map(order, self.indexes)
        assert ours == theirs
        assert [self.leaves[id][0].rank for id in ours] == sorted(
            leaf.rank for leaf, _ in self.leaves.values()
        )


TestLeafMachine = LeafMachine.TestCase
TestLeafMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_every_leaf_is_a_victim_whatever_its_worth() -> None:
    class Undefined(HitsPolicy):
        def weighing(self, clock: int, now: float) -> Weigh:
            return lambda classes, used: np.full(len(classes), np.nan)

    index: LeafIndex[Leaf] = LeafIndex(Undefined())
    for id in range(200):
        index.add(Leaf(id))
    assert sorted(order(index)) == list(range(200))
