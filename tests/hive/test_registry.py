"""Agents and sessions: bounded, whatever names arrive."""

from __future__ import annotations

from hive.agents.registry import OTHER, AgentRegistry
from hive.agents.window import WindowSettings


def test_counts_add_up_by_agent() -> None:
    registry = AgentRegistry(max_agents=8)
    registry.register("patcher", "writes patches")
    registry.arrived("patcher", "run-1", prompt_tokens=10)
    registry.left("patcher", cached_tokens=4, generated=3, replayed=2)
    (agent,) = registry.summary()["agents"]
    assert agent == {
        "name": "patcher",
        "description": "writes patches",
        "registered": True,
        "requests": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "tokens_generated": 3,
        "tokens_replayed": 2,
        "contribution": None,
    }


def test_agents_past_the_limit_are_counted_together() -> None:
    registry = AgentRegistry(max_agents=2)
    for i in range(50):
        registry.arrived(f"agent-{i}", None, prompt_tokens=1)
    names = {agent["name"]: agent["requests"] for agent in registry.summary()["agents"]}
    assert names == {"agent-0": 1, "agent-1": 1, OTHER: 48}
    assert registry.register("late").name == OTHER
    assert not registry.profile(OTHER).registered


def test_requests_without_an_agent_are_counted_too() -> None:
    registry = AgentRegistry(max_agents=2)
    registry.arrived(None, None, prompt_tokens=5)
    assert registry.summary()["agents"][0]["name"] == OTHER


def test_sessions_end_once_and_the_oldest_is_forgotten_first() -> None:
    registry = AgentRegistry(max_agents=2, max_sessions=2)
    for session in ("a", "b", "a", "c"):
        registry.arrived("x", session, prompt_tokens=1)
    assert registry.end_session("b") is None
    assert registry.end_session("a") == 2
    assert registry.end_session("a") is None
    assert registry.summary()["sessions"] == {"active": 1, "ended": 1}


def test_a_registered_session_is_active_before_its_first_request() -> None:
    registry = AgentRegistry(max_agents=2)
    registry.register("x", session="run-1")
    assert registry.summary()["sessions"] == {"active": 1, "ended": 0}
    assert registry.end_session("run-1") == 0


def requests_of(registry: AgentRegistry, *agents: str | None) -> None:
    """A request of each, one after another: all but the last word of the prompt is cached."""
    for agent in agents:
        registry.arrived(agent, None, prompt_tokens=10)
        registry.left(agent, cached_tokens=9, generated=1, replayed=1)


def test_scores_of_a_closed_round_are_in_the_summary() -> None:
    registry = AgentRegistry(max_agents=4, window=WindowSettings(2, 4, collaborative_weight=0.0))
    requests_of(registry, "a", "a", "b")
    summary = registry.summary()
    assert summary["rounds"] == 1
    a, b = summary["agents"]
    assert a["contribution"] == {
        "activity": 1.0,
        "workload": 1.0,
        "efficiency": 1.0,
        "concurrency": 1.0,
        "intrinsic": 1.0,
        "collaborative": 0.0,
        "score": 1.0,
    }
    assert b["contribution"] is None, "its round is not over"


def test_what_agents_share_is_in_the_summary() -> None:
    registry = AgentRegistry(max_agents=2)
    registry.profile("a")
    registry.profile("b")
    registry.reused("b", {"a": 30})
    registry.reused("stranger", {"a": 40})
    registry.reused(None, {"a": 1, OTHER: 5})
    assert registry.summary()["sharing"] == [
        {"agent": OTHER, "producer": "a", "tokens": 41, "events": 2},
        {"agent": "b", "producer": "a", "tokens": 30, "events": 1},
    ]


def test_what_sharing_had_no_room_for_is_in_the_summary() -> None:
    registry = AgentRegistry(max_agents=4, window=WindowSettings(max_edges=1))
    registry.reused("a", {"b": 30, "c": 40})
    registry.reused("a", {"b": 5, "d": 6})
    summary = registry.summary()
    assert [edge["producer"] for edge in summary["sharing"]] == ["b"]
    assert summary["edges_dropped"] == 2


def test_agents_past_the_limit_are_scored_together() -> None:
    registry = AgentRegistry(max_agents=1, window=WindowSettings(3, 1, collaborative_weight=0.0))
    requests_of(registry, "a", "b", "c", "d")
    assert registry.window.scores.keys() == {"a", OTHER}
    assert registry.window.score(OTHER) == 1.0 > registry.window.score("a")


def scored(max_agents: int = 4) -> AgentRegistry:
    """Four requests have arrived; high scores 1, middle 1/4, and nobody else anything."""
    registry = AgentRegistry(max_agents, window=WindowSettings(3, 4, collaborative_weight=0.0))
    requests_of(registry, "high", "high", "middle", "low")
    assert [registry.window.score(agent) for agent in ("high", "middle", "low")] == [1.0, 0.25, 0.0]
    return registry


def test_agents_of_higher_score_have_the_earlier_places_and_equals_stay_as_they_are() -> None:
    registry = scored()
    waiting: list[tuple[str | None, int]] = [
        ("low", 1),
        ("middle", 2),
        ("high", 3),
        ("high", 2),
        ("unknown", 4),
        (None, 3),
    ]
    order = sorted(waiting, key=lambda request: registry.place(request[0], request[1], 10))
    assert order == [("high", 3), ("high", 2), ("middle", 2), ("low", 1), ("unknown", 4), (None, 3)]


def test_a_request_that_enough_others_arrived_after_is_before_every_score() -> None:
    registry = scored()
    assert registry.place("low", 1, max_passes=4) > registry.place("high", 4, max_passes=4)
    requests_of(registry, "high")
    assert registry.place("low", 1, max_passes=4) < registry.place("high", 5, max_passes=4)
    assert registry.place("low", 1, max_passes=4) < registry.place("high", 5, max_passes=1)


def test_places_know_no_more_agents_than_the_registry() -> None:
    registry = scored(max_agents=3)
    for number in range(20):
        registry.place(f"stranger-{number}", 1, max_passes=10)
    assert len(registry.summary()["agents"]) == 4
