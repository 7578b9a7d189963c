"""The accounting of what is resident: who computed it, who uses it, and what became of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hive.server.eviction import accounting as accounting_module
from hive.server.eviction.accounting import NOT_RESIDENT, ResidencyAccounting, Use
from hive.server.eviction.base import EvictionPolicy, Weigh
from hive.server.eviction.node import NodeRecord, Session


class Listener(EvictionPolicy):
    """Writes down what it is told."""

    name = "listener"
    trims = False

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int, int]] = []
        """(what, tokens, clock, hits of the node)"""

    def reused(self, node: NodeRecord, tokens: int, clock: int) -> None:
        self.heard.append(("reused", tokens, clock, node.hits))

    def evicted(self, node: NodeRecord, tokens: int, clock: int) -> None:
        self.heard.append(("evicted", tokens, clock, node.hits))

    def class_of(self, node: NodeRecord) -> int:
        return 0

    def weighing(self, clock: int, now: float) -> Weigh:
        return lambda classes, used: np.zeros(len(classes))


def test_what_is_stored_belongs_to_the_agent_that_computed_it() -> None:
    accounting = ResidencyAccounting(None)
    use = accounting.use("writer", "run-1")
    accounting.admit(use, [])
    node = accounting.stored(use, 30)
    assert (node.producer, node.agent, node.used, node.session) == ("writer", "writer", 1, use.session)
    assert (node.hits, node.ends, node.shared, node.on_device) == (0, 0, False, True)
    assert accounting.summary() == {
        "writer": {"resident_tokens": 30, "stored_tokens": 30, "evicted_tokens": 0},
    }


def test_a_use_by_another_agent_leaves_the_tokens_with_their_producer() -> None:
    accounting = ResidencyAccounting(None)
    node = accounting.stored(accounting.use("writer", None), 30)
    assert accounting.admit(accounting.use("reader", None), [(node, 30)]) == {"writer": 30}
    assert (node.producer, node.agent, node.hits, node.used) == ("writer", "reader", 1, 1)
    assert accounting.resident == {"writer": 30}
    accounting.evicted(node, 30)
    assert accounting.summary() == {
        "writer": {"resident_tokens": 0, "stored_tokens": 30, "evicted_tokens": 30},
        "reader": NOT_RESIDENT,
    }
    assert accounting.resident == Counter()


def test_a_path_is_summed_up_by_producer() -> None:
    accounting = ResidencyAccounting(None)
    path = [
        (accounting.stored(accounting.use(agent, None), tokens), tokens)
        for agent, tokens in (("a", 5), ("b", 7), ("a", 11))
    ]
    assert accounting.admit(accounting.use("c", None), path) == {"a": 16, "b": 7}
    assert [node.hits for node, _ in path] == [1, 1, 1]
    assert [node.ends for node, _ in path] == [1, 0, 0], "only behind the deepest node something new begins"


def test_the_policy_hears_of_a_reuse_as_the_node_was_before_it() -> None:
    listener = Listener()
    accounting = ResidencyAccounting(listener)
    node = accounting.stored(accounting.use("a", None), 8)
    for _ in range(2):
        accounting.admit(accounting.use("a", None), [(node, 8)])
    accounting.evicted(node, 8)
    assert listener.heard == [("reused", 8, 1, 0), ("reused", 8, 2, 1), ("evicted", 8, 2, 2)]
    assert not node.on_device


def test_a_node_of_one_session_keeps_it() -> None:
    accounting = ResidencyAccounting(None)
    node = accounting.stored(accounting.use("a", "run-1"), 8)
    accounting.admit(accounting.use("b", "run-1"), [(node, 8)])
    assert node.session is accounting.use("c", "run-1").session
    assert not node.shared


def test_a_node_of_two_sessions_is_shared_and_dies_with_neither() -> None:
    accounting = ResidencyAccounting(None)
    node = accounting.stored(accounting.use("a", "run-1"), 8)
    accounting.admit(accounting.use("a", "run-2"), [(node, 8)])
    assert node.session is None
    assert node.shared
    for session in ("run-1", "run-2"):
        accounting.end_session(session)
    assert not node.dead


@pytest.mark.parametrize("sessions", [("run-1", None), (None, "run-1")])
def test_a_node_that_was_used_without_a_session_never_dies(sessions: tuple[str | None, ...]) -> None:
    accounting = ResidencyAccounting(None)
    first, second = sessions
    node = accounting.stored(accounting.use("a", first), 8)
    accounting.admit(accounting.use("a", second), [(node, 8)])
    assert node.session is None
    assert not node.shared, "of requests without a session nobody knows whether they are of another one"
    accounting.admit(accounting.use("a", "run-1"), [(node, 8)])
    accounting.end_session("run-1")
    assert not node.dead


def test_the_end_of_a_session_kills_what_it_alone_used() -> None:
    accounting = ResidencyAccounting(None)
    node = accounting.stored(accounting.use("a", "run-1"), 8)
    half = node.split()
    ended = accounting.end_session("run-1")
    assert ended is node.session
    assert node.dead
    assert half.dead, "a node split before the end is of the same session"
    assert node.split().dead
    assert accounting.end_session("run-1") is None


def test_what_a_session_stores_after_its_end_is_dead() -> None:
    accounting = ResidencyAccounting(None)
    late = accounting.use("a", "run-1")
    accounting.end_session("run-1")
    assert accounting.stored(late, 8).dead


def test_a_session_that_begins_again_under_its_name_is_another_one() -> None:
    accounting = ResidencyAccounting(None)
    before = accounting.stored(accounting.use("a", "run-1"), 8)
    accounting.end_session("run-1")
    again = accounting.use("a", "run-1")
    after = accounting.stored(again, 8)
    assert before.dead
    assert not after.dead
    accounting.admit(again, [(before, 8)])
    assert not before.dead, "somebody uses it again"
    assert before.shared


def test_sessions_are_bounded_and_the_one_used_longest_ago_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting_module, "MAX_SESSIONS", 2)
    accounting = ResidencyAccounting(None)
    first = accounting.use("a", "run-1")
    for session in ("run-2", "run-1", "run-3"):
        accounting.use("a", session)
    assert accounting.end_session("run-2") is None
    assert accounting.end_session("run-1") is first.session
    assert accounting.end_session("run-3") is not None
    assert len(accounting._sessions) == 0


def test_sessions_have_numbers_of_their_own() -> None:
    accounting = ResidencyAccounting(None)
    numbers = set()
    for _ in range(3):
        for name in ("run-1", "run-2"):
            session = accounting.use("a", name).session
            assert session is not None
            numbers.add(session.number)
        for name in ("run-1", "run-2"):
            accounting.end_session(name)
    assert len(numbers) == 6


def test_kv_that_comes_back_is_its_producers_again() -> None:
    accounting = ResidencyAccounting(None)
    node = accounting.stored(accounting.use("a", None), 8)
    accounting.evicted(node, 8)
    accounting.returned(node, 8)
    assert node.on_device
    assert accounting.summary()["a"] == {"resident_tokens": 8, "stored_tokens": 16, "evicted_tokens": 8}


def test_kv_that_is_loaded_back_is_as_it_was() -> None:
    accounting = ResidencyAccounting(None)
    node = accounting.stored(accounting.use("a", "run-1"), 8)
    accounting.evicted(node, 8)
    accounting.admit(accounting.use("b", "run-2"), [])
    accounting.returned(node, 8)
    assert (node.agent, node.used, node.shared) == ("a", 0, False)
    accounting.end_session("run-1")
    assert node.dead, "whoever it was loaded for has not been admitted yet"


def test_kv_that_is_computed_again_is_used_by_who_computes_it_but_not_hit() -> None:
    listener = Listener()
    accounting = ResidencyAccounting(listener)
    node = accounting.stored(accounting.use("a", "run-1"), 8)
    accounting.evicted(node, 8)
    accounting.end_session("run-1")
    again = accounting.use("b", "run-2")
    accounting.admit(again, [])
    accounting.returned(node, 8, again)
    assert (node.producer, node.agent, node.used, node.hits, node.ends) == ("a", "b", 1, 0, 0)
    assert not node.dead
    assert node.shared
    assert accounting.held == {"b": 8}
    assert [what for what, *_ in listener.heard] == ["evicted"]


def test_whoever_goes_on_from_a_node_is_one_of_its_sessions_and_has_not_hit_it() -> None:
    listener = Listener()
    accounting = ResidencyAccounting(listener)
    node = accounting.stored(accounting.use("a", "run-1"), 8)
    accounting.joined(node, 8, accounting.use("b", "run-1"))
    assert node.session is not None
    assert not node.shared
    accounting.joined(node, 8, accounting.use("b", "run-2"))
    assert node.session is None
    assert node.shared
    assert (node.agent, node.used, node.hits, node.ends) == ("a", 0, 0, 0)
    assert listener.heard == []


def test_kv_is_held_by_the_agent_that_used_it_last() -> None:
    accounting = ResidencyAccounting(None)
    read, own = (accounting.stored(accounting.use("writer", None), tokens) for tokens in (30, 10))
    accounting.admit(accounting.use("reader", None), [(read, 30)])
    assert accounting.held == {"reader": 30, "writer": 10}
    assert accounting.resident == {"writer": 40}, "it is still the writer's work"
    accounting.evicted(read, 30)
    assert accounting.held == {"writer": 10}
    accounting.returned(read, 30)
    assert accounting.held == {"reader": 30, "writer": 10}
    accounting.evicted(own, 10)
    assert accounting.held == {"reader": 30}
    accounting.flushed()
    assert accounting.held == {}


def test_a_flush_leaves_nothing_resident_and_forgets_no_total() -> None:
    accounting = ResidencyAccounting(None)
    accounting.stored(accounting.use("a", "run-1"), 30)
    accounting.flushed()
    assert accounting.held == {}
    assert accounting.summary()["a"] == {"resident_tokens": 0, "stored_tokens": 30, "evicted_tokens": 0}
    assert accounting.end_session("run-1") is not None, "sessions outlive what they stored"


AGENTS = st.sampled_from("abc")
SESSIONS = st.sampled_from([None, "s", "t", "u"])
TOKENS = st.integers(1, 50)
SEEDS = st.integers(0, 2**16)


@dataclass
class Known:
    """A node, and what happened to it."""

    record: NodeRecord
    tokens: int
    agent: str
    sessions: set[Session | None]
    hits: int = 0

    def split(self) -> Known:
        """Take one half away."""
        half = self.tokens // 2
        self.tokens -= half
        return Known(self.record.split(), half, self.agent, set(self.sessions), self.hits)


class BookMachine(RuleBasedStateMachine):
    """Nodes come, are used, split, leave the device and come back, beside a record of who used which."""

    def __init__(self) -> None:
        super().__init__()
        self.accounting = ResidencyAccounting(None)
        self.nodes: list[list[Known]] = [[], []]
        """On the device, and away."""

    def a_use(self, agent: str, session: str | None) -> Use:
        return self.accounting.use(agent, session)

    @rule(agent=AGENTS, session=SESSIONS, tokens=TOKENS)
    def store(self, agent: str, session: str | None, tokens: int) -> None:
        use = self.a_use(agent, session)
        self.nodes[0].append(Known(self.accounting.stored(use, tokens), tokens, agent, {use.session}))

    @rule(agent=AGENTS, session=SESSIONS, picks=st.sets(SEEDS, max_size=4))
    def admit(self, agent: str, session: str | None, picks: set[int]) -> None:
        known = self.nodes[0] + self.nodes[1]
        path = [known[at] for at in sorted({pick % len(known) for pick in picks})] if known else []
        use = self.a_use(agent, session)
        producers = self.accounting.admit(use, [(node.record, node.tokens) for node in path])
        assert sum(producers.values()) == sum(node.tokens for node in path)
        for node in path:
            node.agent = agent
            node.sessions.add(use.session)
            node.hits += 1

    @rule(agent=AGENTS, session=SESSIONS, pick=SEEDS)
    def join(self, agent: str, session: str | None, pick: int) -> None:
        if self.nodes[0]:
            node = self.nodes[0][pick % len(self.nodes[0])]
            use = self.a_use(agent, session)
            self.accounting.joined(node.record, node.tokens, use)
            node.sessions.add(use.session)

    @rule(pick=SEEDS)
    def split(self, pick: int) -> None:
        if self.nodes[0]:
            node = self.nodes[0][pick % len(self.nodes[0])]
            if node.tokens > 1:
                self.nodes[0].append(node.split())

    @rule(pick=SEEDS)
    def evict(self, pick: int) -> None:
        if self.nodes[0]:
            node = self.nodes[0].pop(pick % len(self.nodes[0]))
            self.accounting.evicted(node.record, node.tokens)
            self.nodes[1].append(node)

    @rule(pick=SEEDS)
    def load_back(self, pick: int) -> None:
        if self.nodes[1]:
            node = self.nodes[1].pop(pick % len(self.nodes[1]))
            self.accounting.returned(node.record, node.tokens)
            self.nodes[0].append(node)

    @rule(agent=AGENTS, session=SESSIONS, pick=SEEDS)
    def compute_again(self, agent: str, session: str | None, pick: int) -> None:
        if self.nodes[1]:
            node = self.nodes[1].pop(pick % len(self.nodes[1]))
            use = self.a_use(agent, session)
            self.accounting.returned(node.record, node.tokens, use)
            node.agent = agent
            node.sessions.add(use.session)
            self.nodes[0].append(node)

    @rule(session=st.sampled_from(["s", "t", "u"]))
    def end(self, session: str) -> None:
        self.accounting.end_session(session)

    @rule()
    def flush(self) -> None:
        self.accounting.flushed()
        self.nodes = [[], []]

    @invariant()
    def residency_is_what_the_nodes_hold(self) -> None:
        computed: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for node in self.nodes[0]:
            computed[node.record.producer] += node.tokens
            held[node.agent] += node.tokens
            assert node.record.on_device
        assert dict(self.accounting.resident) == dict(computed)
        assert dict(self.accounting.held) == dict(held)
        for agent, counts in self.accounting.summary().items():
            assert counts["resident_tokens"] == computed[agent]
            assert counts["stored_tokens"] >= counts["evicted_tokens"] + counts["resident_tokens"]

    @invariant()
    def nodes_know_who_used_them(self) -> None:
        for node in self.nodes[0] + self.nodes[1]:
            assert node.record.agent == node.agent
            assert node.record.hits == node.hits
            alone = next(iter(node.sessions)) if len(node.sessions) == 1 else None
            assert node.record.session is alone
            assert node.record.dead == (alone is not None and alone.ended)


TestBookMachine = BookMachine.TestCase
TestBookMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
