"""The waiting queue by contribution, as the hook behind SGLang's own order leaves it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hive.server.agents.registry import AgentRegistry
from hive.server.agents.window import WindowSettings
from sglang_patches.hooks.schedule_policy import after_calc_priority, before_add_one_req
from sglang_patches.requests.request_state import RequestState
from sglang_patches.scheduling.contribution_order import ContributionOrder

SCORES = {"high": 1.0, "middle": 0.25, "low": 0.0}


@pytest.fixture
def agents() -> AgentRegistry:
    """A registry whose agents have the scores above; four requests have arrived."""
    registry = AgentRegistry(8, window=WindowSettings(3, 4, collaborative_weight=0.0))
    for agent in ("high", "high", "middle", "low"):
        registry.arrived(agent, None, 10)
        registry.left(agent, cached_tokens=9, generated=1, replayed=1)
    assert {agent: registry.window.score(agent) for agent in SCORES} == SCORES
    return registry


def waiting(name: str, agent: str | None, number: int) -> Any:
    """A request of the engine, as far as its place matters."""
    return SimpleNamespace(rid=name, hive=RequestState(agent, number=number))


def health_check(name: str) -> Any:
    return SimpleNamespace(rid=name)


def sorted_by(order: ContributionOrder | None, queue: list[Any]) -> list[str]:
    """Names of the requests of a queue, after the hook."""
    policy = SimpleNamespace(hive_order=order)
    same = queue
    assert after_calc_priority("result", policy, queue, None) == "result"
    assert queue is same
    return [req.rid for req in queue]


def test_agents_of_higher_score_go_first(agents: AgentRegistry) -> None:
    queue = [
        waiting("1", "low", 5),
        waiting("2", "stranger", 6),
        waiting("3", "middle", 7),
        waiting("4", "high", 8),
        waiting("5", None, 9),
    ]
    assert sorted_by(ContributionOrder(agents, 64), queue) == ["4", "3", "1", "2", "5"]


def test_equals_stay_in_the_order_of_the_engine(agents: AgentRegistry) -> None:
    # As by the longest prefix, which is not the order of their arrival.
    queue = [
        waiting("c", "high", 9),
        waiting("x", "low", 5),
        waiting("a", "high", 7),
        waiting("y", "stranger", 4),
        waiting("b", "high", 8),
    ]
    assert sorted_by(ContributionOrder(agents, 64), queue) == ["c", "a", "b", "x", "y"]


def test_a_request_that_enough_others_have_passed_goes_first(agents: AgentRegistry) -> None:
    order = ContributionOrder(agents, max_passes=3)
    old, older = waiting("old", "low", 3), waiting("older", "low", 2)
    assert sorted_by(order, [waiting("new", "high", 4), old, older]) == ["new", "old", "older"]
    agents.arrived("high", None, 10)
    assert sorted_by(order, [waiting("new", "high", 5), old, older]) == ["older", "new", "old"]
    agents.arrived("high", None, 10)
    assert sorted_by(order, [waiting("new", "high", 6), old, older]) == ["older", "old", "new"]


def test_nothing_waits_for_more_than_its_passes(agents: AgentRegistry) -> None:
    # The queue gives one request a place at each step, and agents of high score never pause.
    order = ContributionOrder(agents, max_passes=5)
    starving = waiting("starving", "low", agents.requests)
    queue, steps = [starving], 0
    while starving in queue:
        for _ in range(2):
            agents.arrived("high", None, 10)
            queue.append(waiting(f"high-{agents.requests}", "high", agents.requests))
        sorted_by(order, queue)
        queue.pop(0)
        steps += 1
        assert steps < 10
    assert steps == 3


def test_health_checks_are_before_everything(agents: AgentRegistry) -> None:
    queue = [waiting("overdue", "low", 1), waiting("high", "high", 4), health_check("HEALTH_CHECK_1")]
    assert sorted_by(ContributionOrder(agents, 2), queue) == ["HEALTH_CHECK_1", "overdue", "high"]


def test_without_the_flag_the_engines_order_stays(agents: AgentRegistry) -> None:
    queue = [waiting("1", "low", 5), waiting("2", "high", 6), health_check("3")]
    assert sorted_by(None, queue) == ["1", "2", "3"]


def test_scores_change_an_order_at_the_end_of_a_round(agents: AgentRegistry) -> None:
    order = ContributionOrder(agents, 64)
    queue = [waiting("1", "high", 5), waiting("2", "low", 6)]
    assert sorted_by(order, queue) == ["1", "2"]
    for _ in range(12):
        agents.arrived("low", None, 10_000)
        agents.left("low", cached_tokens=10_000, generated=1, replayed=1)
    agents.arrived("low", None, 10)
    assert agents.window.score("low") == 1.0
    assert sorted_by(order, queue) == ["2", "1"]


def test_a_cache_with_segments_knows_the_slots_promised_by_admission() -> None:
    adder = SimpleNamespace(rem_total_token_offset=12, tree_cache=SimpleNamespace(promised=0))
    ordinary = waiting("a", "high", 1)
    before_add_one_req(adder, ordinary)
    before_add_one_req(adder, health_check("b"))
    assert adder.tree_cache.promised == 0
    ordinary.hive.kv = object()
    before_add_one_req(adder, ordinary, False, truncation_align_size=None)
    assert adder.tree_cache.promised == 12
