"""Rows of tables for agents that come and go."""

from __future__ import annotations

import numpy as np

from hive.server.eviction.accounting import ResidencyAccounting
from hive.server.eviction.agent_numbers import AgentNumbers
from hive.server.eviction.node import NodeRecord
from hive.server.eviction.policies.contribution import ContributionPolicy
from hive.server.eviction.policies.density import DensityPolicy


def test_an_agent_keeps_its_number_until_it_is_forgotten() -> None:
    numbers = AgentNumbers()
    assert [numbers.of(name) for name in ("a", "b", "a", "c")] == [0, 1, 0, 2]
    assert numbers.forget("b") == 1
    assert numbers.find("b") is None
    assert numbers.of("d") == 1
    assert numbers.of("b") == 3
    assert dict(numbers) == {"a": 0, "c": 2, "d": 1, "b": 3}
    assert len(numbers) == 4
    assert numbers.forget("nobody") is None


def test_what_goes_beyond_the_most_shares_one_number() -> None:
    numbers = AgentNumbers(most=2)
    assert [numbers.of(name) for name in ("a", "b", "c", "d", "a")] == [0, 1, 2, 2, 0]
    assert len(numbers) == 3
    numbers.forget("a")
    assert [numbers.of(name) for name in ("c", "d")] == [0, 2]
    assert numbers.forget("d") is None


def record(agent: str, used: int = 1) -> NodeRecord:
    return NodeRecord(agent, agent, used, None)


def test_tables_are_bounded_however_many_names_come_and_go() -> None:
    density, paper = DensityPolicy(lambda _: 0.5), ContributionPolicy(lambda _: 0.5)
    for number in range(10_000):
        for policy in (density, paper):
            policy.class_of(record(f"agent-{number}"))
            policy.forget(f"agent-{number}")
    assert density._hits.shape[0] == 8
    assert len(paper._scores()) == 1


def test_who_gets_the_number_of_another_begins_without_its_evidence() -> None:
    policy = DensityPolicy(lambda _: 0.5)
    policy.evicted(record("old"), 1_000_000, 60)
    policy.reused(record("busy"), 1_000, 4)
    classes = np.array([policy.class_of(record("old"))], np.int32)
    used = np.array([90], np.int64)
    worthless = policy.weighing(100, 0.0)(classes, used)
    policy.forget("old")
    assert policy.class_of(record("new")) == classes[0]
    assert policy.weighing(101, 0.0)(classes, used) > 3 * worthless


def test_kv_of_a_forgotten_agent_comes_back_as_nobodys() -> None:
    accounting = ResidencyAccounting(DensityPolicy(lambda _: 0.5))
    node = accounting.stored(accounting.use("gone", None), 10)
    accounting.evicted(node, 10)
    assert not accounting.holds("gone")
    accounting.forget("gone")
    accounting.returned(node, 10)
    assert (node.producer, node.agent) == ("other", "other")
    assert accounting.summary() == {
        "other": {"resident_tokens": 10, "stored_tokens": 20, "evicted_tokens": 10}
    }
    assert dict(accounting.held) == {"other": 10}
