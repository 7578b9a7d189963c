"""The worth of nodes by hit density: against the formula written out, and as an order of leaves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.server.agents.registry import OTHER
from hive.server.eviction.node import NodeRecord, Session
from hive.server.eviction.policies.density import (
    AGE_BINS,
    BINS_PER_DOUBLING,
    DEAD,
    DensityPolicy,
    DensitySettings,
    age_bin,
    age_bins,
)


def record(
    agent: str = "a", used: int = 0, hits: int = 0, *, ends: int = 0, shared: bool = False
) -> NodeRecord:
    return NodeRecord(agent, agent, used, None, hits, ends, shared)


def worth(policy: DensityPolicy, nodes: Sequence[NodeRecord], clock: int, now: float = 0.0) -> list[float]:
    classes = np.array([policy.class_of(node) for node in nodes], np.int32)
    used = np.array([node.used for node in nodes], np.int64)
    values: list[float] = policy.weighing(clock, now)(classes, used).tolist()
    return values


def indifferent(_: str) -> float:
    """Every agent contributes alike."""
    return 0.5


# The formula of the module, step by step.

BIN_AGES = [2 ** ((bin + 0.5) / BINS_PER_DOUBLING) - 1 for bin in range(AGE_BINS)]


def density(
    hits: Mapping[int, float], evictions: Mapping[int, float], prior: Sequence[float], evidence: float
) -> list[float]:
    """By age bin, from tokens by age bin."""
    result = []
    for bin, age in enumerate(BIN_AGES):
        later = [other for other in range(bin, AGE_BINS) if hits.get(other) or evictions.get(other)]
        brought = sum(hits.get(other, 0.0) for other in later)
        room = sum(
            (hits.get(other, 0.0) + evictions.get(other, 0.0)) * (BIN_AGES[other] - age + 1)
            for other in later
        )
        result.append((brought + evidence * prior[bin]) / (room + evidence))
    return result


@dataclass
class Reference:
    """All that happened, kept as it came."""

    evidence: float = 2000.0
    half_life: int = 1024
    scores: dict[str, float] = field(default_factory=dict)
    events: list[tuple[bool, str, tuple[int, bool], int, float, int]] = field(default_factory=list)
    """(hit, agent, kind, age bin, tokens, clock)"""

    def count(self, hit: bool, node: NodeRecord, tokens: int, clock: int) -> None:
        age = clock - node.used
        bin = min(AGE_BINS - 1, math.floor(BINS_PER_DOUBLING * math.log2(1 + age) + 1e-9))
        self.events.append((hit, node.agent, self.kind(node), bin, tokens, clock))

    @staticmethod
    def kind(node: NodeRecord) -> tuple[int, bool]:
        if node.agent == OTHER:
            # Up to one turn, two, up to four, more.
            return sum(node.ends > turns for turns in (1, 2, 4)), node.shared
        return min(node.hits, 3), node.shared

    def densities(self, node: NodeRecord, clock: int) -> list[float]:
        """By age bin, of the class of a node."""
        books: dict[tuple[bool, bool], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for hit, agent, kind, bin, tokens, then in self.events:
            weight = tokens * 0.5 ** ((clock - then) / self.half_life)
            if kind == self.kind(node):
                books[hit, False][bin] += weight
                if agent == node.agent:
                    books[hit, True][bin] += weight
        lru = [1 / (1 + age) for age in BIN_AGES]
        everyone = density(books[True, False], books[False, False], lru, self.evidence)
        scale = 0.5 + self.scores.get(node.agent, 0.0)
        prior = [scale * value for value in everyone]
        own = [
            min(1.0, value) for value in density(books[True, True], books[False, True], prior, self.evidence)
        ]
        if node.agent == OTHER:
            own = [min(own[: bin + 1]) for bin in range(AGE_BINS)]
        return own


NODES = st.builds(
    record,
    st.sampled_from(["a", "b", "c", OTHER]),
    hits=st.integers(0, 5),
    ends=st.integers(0, 6),
    shared=st.booleans(),
)
EVENTS = st.lists(
    st.tuples(st.booleans(), NODES, st.integers(0, 3000), st.integers(1, 5000), st.integers(0, 900)),
    max_size=30,
)
"""(hit, node, age, tokens, admissions since the event before)"""


@given(EVENTS, st.dictionaries(st.sampled_from(["a", "b", OTHER]), st.floats(0, 1)), NODES, st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_estimate_is_that_of_the_formula(
    events: list[tuple[bool, NodeRecord, int, int, int]],
    scores: dict[str, float],
    asked: NodeRecord,
    often: bool,
) -> None:
    policy = DensityPolicy(lambda name: scores.get(name, 0.0))
    reference = Reference(scores=scores)
    clock = 3000
    for hit, node, age, tokens, later in events:
        clock += later
        node.used = clock - age
        reference.count(hit, node, tokens, clock)
        (policy.reused if hit else policy.evicted)(node, tokens, clock)
        if often:
            worth(policy, [asked], clock)
    clock += 100
    aged = [
        record(asked.agent, clock - age, asked.hits, ends=asked.ends, shared=asked.shared) for age in AGES
    ]
    expected = reference.densities(asked, clock)
    found = worth(policy, aged, clock)
    assert found == pytest.approx([expected[age_bin(age)] for age in AGES], rel=1e-6)
    assert all(0.0 <= value <= 1.0 for value in found)


AGES = [0, 1, 2, 3, 5, 9, 17, 40, 100, 333, 1000, 2500, 3000]


def test_nothing_known_is_lru() -> None:
    policy = DensityPolicy(indifferent)
    found = worth(policy, [record(used=used) for used in range(0, 2000, 7)], 2000)
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_what_an_agent_uses_again_outlives_what_another_never_does() -> None:
    policy = DensityPolicy(indifferent)
    clock = 0
    for _ in range(100):
        clock += 10
        policy.reused(record("looping", clock - 20), 100, clock)
        policy.evicted(record("once", clock - 50), 100, clock)
    looping, once = (
        worth(policy, [record(agent, clock - age) for age in range(20)], clock)
        for agent in ("looping", "once")
    )
    assert min(looping) > max(once)
    # The agent's period is 20 admissions: what it has not used for longer will not be.
    late, later = worth(policy, [record("looping", clock - age) for age in (100, 400)], clock)
    assert later <= late < min(looping)


def test_how_often_a_node_was_used_makes_its_class() -> None:
    policy = DensityPolicy(indifferent)
    for clock in range(100, 2100, 20):
        policy.reused(record("a", clock - 10, hits=2), 100, clock)
        policy.evicted(record("a", clock - 60, hits=0), 100, clock)
    prompt, answer = worth(policy, [record("a", 2090, hits=2), record("a", 2090, hits=0)], 2100)
    assert prompt > 2 * answer


def test_what_sessions_share_is_a_class_of_its_own() -> None:
    policy = DensityPolicy(indifferent)
    for clock in range(100, 2100, 20):
        policy.reused(record("a", clock - 10, hits=1, shared=True), 100, clock)
        policy.evicted(record("a", clock - 60, hits=1), 100, clock)
    shared, private = worth(policy, [record("a", 2090, 1, shared=True), record("a", 2090, 1)], 2100)
    assert shared > 2 * private


def test_an_agent_without_evidence_leans_on_all_others_and_on_its_score() -> None:
    policy = DensityPolicy({"praised": 1.0, "known": 0.5, "blamed": 0.0}.__getitem__)
    for clock in range(100, 2100, 10):
        policy.reused(record("known", clock - 10), 1000, clock)
    names = ("known", "praised", "blamed")
    known, praised, blamed = worth(policy, [record(name, 2095) for name in names], 2100)
    lru = 1 / (1 + BIN_AGES[age_bin(5)])
    assert praised == pytest.approx(3 * blamed)
    assert praised > known > blamed
    assert blamed != pytest.approx(lru / 2, rel=0.1), "no evidence of all agents was counted"


def test_what_is_dead_is_worth_less_than_anything() -> None:
    policy = DensityPolicy(indifferent)
    dead = NodeRecord("hog", "hog", 99, Session(1, ended=True))
    for clock in range(1, 100):
        policy.evicted(record("hog", 0), 10_000, clock)
    values = worth(policy, [dead, record("hog", 0), record("a", 0), record("a", 99)], 100, {"hog": 0.9})
    assert values[0] == DEAD < min(values[1:])


def test_that_the_dead_are_evicted_says_nothing_of_their_class() -> None:
    taught, blank = DensityPolicy(indifferent), DensityPolicy(indifferent)
    dead = NodeRecord("a", "a", 0, Session(1, ended=True))
    taught.evicted(dead, 10_000, 50)
    assert worth(taught, [record(used=40)], 50) == worth(blank, [record(used=40)], 50)


@given(EVENTS)
@settings(max_examples=100, deadline=None)
def test_what_names_no_agent_is_worth_less_the_longer_it_lies(
    events: list[tuple[bool, NodeRecord, int, int, int]],
) -> None:
    policy = DensityPolicy(indifferent)
    clock = 3000
    for hit, node, age, tokens, later in events:
        clock += later
        node.used, node.agent = clock - age, OTHER
        (policy.reused if hit else policy.evicted)(node, tokens, clock)
    for shared in (False, True):
        for ends in (0, 2, 4, 5):
            leaves = [record(OTHER, clock - age, ends=ends, shared=shared) for age in AGES]
            values = worth(policy, leaves, clock)
            assert values == sorted(values, reverse=True)


def test_turns_of_a_dialogue_are_one_class_whatever_their_depth() -> None:
    policy = DensityPolicy(indifferent)
    turns = [record(OTHER, hits=hits, ends=1) for hits in range(10)]
    assert len({policy.class_of(node) for node in turns}) == 1
    prompt = record(OTHER, hits=10, ends=9)
    assert policy.class_of(prompt) != policy.class_of(turns[-1])
    named = [record("a", hits=hits, ends=1) for hits in range(10)]
    assert len({policy.class_of(node) for node in named}) == 4


@pytest.mark.parametrize("evictions_between", [False, True])
def test_evidence_counts_half_after_a_half_life(evictions_between: bool) -> None:
    half_life = 100
    policies = [DensityPolicy(indifferent, DensitySettings(half_life=half_life)) for _ in range(2)]
    for policy, tokens, at in zip(policies, (40_000, 20_000), (1000, 1000 + half_life), strict=True):
        for clock in range(1, 1000):
            if evictions_between:
                worth(policy, [record()], clock)
        policy.reused(record("a", at - 5), tokens, at)
        policy.evicted(record("a", at - 30), tokens, at)
    leaves = [record("a", 1100 - age) for age in AGES[:8]]
    early, late = (worth(policy, leaves, 1000 + half_life) for policy in policies)
    assert early == pytest.approx(late)


def test_evidence_is_worth_what_it_is_when_the_first_eviction_comes_late() -> None:
    # Until a large pool is full nothing is evicted, and nobody asks what is worth how much.
    never_asked, asked = DensityPolicy(indifferent), DensityPolicy(indifferent)
    clock = 100_000
    worth(asked, [record()], clock - 20)
    for policy in (never_asked, asked):
        policy.reused(record("a", clock - 5), 50_000, clock)
    leaves = [record("a", clock - age) for age in AGES]
    assert worth(never_asked, leaves, clock) == pytest.approx(worth(asked, leaves, clock))
    assert worth(never_asked, leaves, clock)[4] > 0.9


def test_what_was_learned_survives_any_number_of_further_agents() -> None:
    policy = DensityPolicy(indifferent)
    clock = 50_000
    worth(policy, [record()], clock - 20)
    policy.reused(record("a", clock - 5), 50_000, clock)
    policy.evicted(record("b", clock - 500), 50_000, clock)
    leaves = [record("a", clock - age) for age in AGES] + [record("b", clock - age) for age in AGES]
    before = worth(policy, leaves, clock)
    for number in range(300):
        stranger = record(f"agent-{number}", clock - 1)
        assert 0.0 < worth(policy, [stranger], clock)[0] <= 1.0, "a new agent's nodes read as worthless"
    assert worth(policy, leaves, clock) == pytest.approx(before)


def test_every_one_of_many_agents_has_its_own_estimate() -> None:
    policy = DensityPolicy(indifferent)
    clock = 5000
    agents = [f"agent-{number}" for number in range(200)]
    for number, agent in enumerate(agents):
        policy.reused(record(agent, clock - 3), 100 * number, clock)
        policy.evicted(record(agent, clock - 300), 100 * (200 - number), clock)
    values = worth(policy, [record(agent, clock - 1) for agent in agents], clock)
    assert values == sorted(values)
    assert values[-1] > 4 * values[0]


def test_bins_of_one_age_and_of_many_agree() -> None:
    # Every age next to a bound between two bins, and a sample of all others.
    bounds = [round(2 ** (bin / BINS_PER_DOUBLING)) for bin in range(BINS_PER_DOUBLING * 21)]
    ages = {max(0, bound + step) for bound in bounds for step in (-2, -1, 0, 1)}
    ages |= set(range(5000)) | set(range(0, 10**6, 997)) | {10**6}
    ordered = np.array(sorted(ages), np.int64)
    assert [age_bin(int(age)) for age in ordered] == age_bins(ordered).tolist()
    assert age_bin(0) == 0
    assert age_bin(10**12) == age_bins(np.array([10**12]))[0] == AGE_BINS - 1
