"""Agents and sessions: bounded, whatever names arrive."""

from __future__ import annotations

from hive.agents.registry import OTHER, AgentRegistry


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
