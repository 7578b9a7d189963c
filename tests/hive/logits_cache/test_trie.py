"""The trie: what it finds, what it forgets, and that its books always balance."""

from __future__ import annotations

import gc
import random
import tracemalloc

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hive.server.logits_cache.head import Head
from hive.server.logits_cache.packing import pack
from hive.server.logits_cache.trie import MAX_NORMALISERS, LogitsTrie, PrefixHash, Writer


def row(size: int = 4, temperature: float = 1.0) -> bytes:
    logits = -np.arange(size, dtype=np.float32)
    return pack(Head(np.arange(size, dtype=np.int32), logits, 99, {temperature: 2.0}))


def digest(namespace: str, *tokens: int) -> bytes:
    return PrefixHash(namespace, tokens).digest()


def test_every_prefix_of_an_output_is_a_state() -> None:
    trie = LogitsTrie(10**6)
    trie.insert("m", [1, 2], [3, 4], {0: row(), 1: row()})
    assert len(trie) == 2
    assert trie.find(digest("m", 1, 2)) is not None
    inside = trie.find(digest("m", 1, 2, 3))
    assert inside is not None
    assert trie.find(digest("m", 1, 2, 3, 4)) is None, "nobody drew from there"
    assert trie.find(digest("m", 1, 2)).child(3) is inside  # type: ignore[union-attr]


def test_namespaces_share_nothing() -> None:
    trie = LogitsTrie(10**6)
    trie.insert("tenant-a", [1], [2], {0: row()})
    assert trie.find(digest("tenant-b", 1)) is None


def test_a_hole_ends_the_path() -> None:
    trie = LogitsTrie(10**6)
    trie.insert("m", [1], [2, 3, 4], {0: row(), 2: row()})
    assert len(trie) == 1
    assert trie.find(digest("m", 1, 2, 3)) is None


def test_a_replayed_prefix_is_extended_by_what_the_model_added() -> None:
    trie = LogitsTrie(10**6)
    trie.insert("m", [1], [2, 3], {0: row(), 1: row()})
    trie.insert("m", [1], [2, 3, 4], {2: row()})
    assert len(trie) == 3
    assert trie.find(digest("m", 1, 2)).child(3) is trie.find(digest("m", 1, 2, 3))  # type: ignore[union-attr]


def test_a_row_can_be_replayed_while_its_request_goes_on() -> None:
    trie = LogitsTrie(10**6)
    writer = Writer(trie, PrefixHash("m", [1]))
    writer.write(0, [2], row())
    assert trie.find(digest("m", 1)) is not None
    writer.write(1, [2, 3], row())
    root = trie.find(digest("m", 1))
    assert root is not None
    assert root.child(2) is trie.find(digest("m", 1, 2))
    trie.capacity_bytes = 1
    writer.write(2, [2, 3, 4], row())
    writer.write(3, [2, 3, 4, 5], row())
    writer.close()
    trie.check_integrity()


def test_branches_meet_at_their_common_state() -> None:
    trie = LogitsTrie(10**6)
    trie.insert("m", [1], [2, 3], {0: row(), 1: row()})
    trie.insert("m", [1], [5, 3], {0: row(), 1: row()})
    root = trie.find(digest("m", 1))
    assert root is not None
    assert [child.token for child in root.children] == [2, 5]


def test_a_second_temperature_adds_its_normaliser() -> None:
    trie = LogitsTrie(10**6)
    trie.insert("m", [1], [2], {0: row(temperature=1.0)})
    trie.insert("m", [1], [2], {0: row(temperature=0.5)})
    node = trie.find(digest("m", 1))
    assert node is not None
    assert set(node.head.normalisers) == {1.0, 0.5}
    trie.check_integrity()


def test_a_row_knows_a_bounded_number_of_temperatures() -> None:
    trie = LogitsTrie(10**6)
    for number in range(1, 300):
        trie.insert("m", [1], [2], {0: row(temperature=float(np.float32(number / 100)))})
    node = trie.find(digest("m", 1))
    assert node is not None
    assert len(node.head.normalisers) == MAX_NORMALISERS
    assert max(node.head.normalisers) == np.float32(2.99)
    trie.check_integrity()


def test_a_longer_head_takes_the_place_of_a_shorter_one() -> None:
    trie = LogitsTrie(10**6)
    for size in (5, 9, 3):
        trie.insert("m", [1], [2], {0: row(size)})
    node = trie.find(digest("m", 1))
    assert node is not None
    assert len(node.head.ids) == 9


def test_tips_of_the_least_recently_used_path_go_first() -> None:
    trie = LogitsTrie(10**6)
    trie.insert("m", [1], [2, 3], {0: row(), 1: row()})
    trie.insert("m", [9], [8, 7], {0: row(), 1: row()})
    trie.touch([trie.find(digest("m", 1)), trie.find(digest("m", 1, 2))])  # type: ignore[list-item]
    trie.capacity_bytes = trie.nbytes - 1
    trie.insert("m", [1], [2, 3], {0: row()})
    assert trie.find(digest("m", 9, 8)) is None
    assert trie.find(digest("m", 9)) is not None
    assert len(trie) == 3
    assert trie.evicted_nodes == 1


def test_the_books_agree_with_the_memory_in_use() -> None:
    rng = random.Random(0)
    gc.collect()
    tracemalloc.start()
    trie = LogitsTrie(10**9)
    while len(trie) < 20_000:
        output = [rng.randrange(49_152) for _ in range(20)]
        trie.insert("m", [rng.randrange(49_152)], output, {i: row(rng.randrange(1, 60)) for i in range(20)})
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.85 < trie.nbytes / used < 1.25


def test_the_budget_holds_through_a_hundred_thousand_requests() -> None:
    rng = random.Random(0)
    capacity = 2_000_000
    trie = LogitsTrie(capacity)
    packed = [row(size) for size in range(1, 60)]
    peak = 0
    for _ in range(100_000):
        prompt = [rng.randrange(40), rng.randrange(40)]
        output = [rng.randrange(4) for _ in range(rng.randrange(1, 6))]
        trie.insert("m", prompt, output, {i: rng.choice(packed) for i in range(len(output))})
        peak = max(peak, trie.nbytes)
        assert trie.nbytes <= capacity
    assert peak > 0.99 * capacity
    assert trie.evicted_nodes > 100_000
    trie.check_integrity()


class TrieMachine(RuleBasedStateMachine):
    """Random traffic over few tokens, so that paths share, diverge, rejoin and are evicted in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.trie = LogitsTrie(6_000)

    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6)

    @rule(prompt=tokens, output=tokens, holes=st.sets(st.integers(0, 5)), size=st.integers(1, 40))
    def write(self, prompt: list[int], output: list[int], holes: set[int], size: int) -> None:
        rows = {i: row(size) for i in range(len(output)) if i not in holes}
        self.trie.insert("m", prompt, output, rows)

    @rule(prompt=tokens)
    def read(self, prompt: list[int]) -> None:
        node = self.trie.find(digest("m", *prompt))
        path = []
        while node is not None:
            path.append(node)
            node = next(iter(node.children), None)
        self.trie.touch(path)

    @rule()
    def flush(self) -> None:
        self.trie.clear()

    @invariant()
    def books_balance(self) -> None:
        self.trie.check_integrity()


TestTrieMachine = TrieMachine.TestCase
TestTrieMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
