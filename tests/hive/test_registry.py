"""Agents and sessions: bounded, whatever names arrive."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.server.agents.registry import OTHER, AgentRegistry
from hive.server.agents.tenant import View
from hive.server.agents.window import WindowSettings


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


class Slots:
    """A registry of which agents that are over give up their slots, and what it says of them."""

    def __init__(self, max_agents: int = 3, rounds: int = 2, max_tenant_agents: int | None = None) -> None:
        window = WindowSettings(round_requests=2, rounds=rounds)
        self.registry = AgentRegistry(max_agents, window=window, max_tenant_agents=max_tenant_agents)
        self.holding: set[str] = set()
        self.forgotten: list[str] = []
        self.registry.reuse_slots(self.holding.__contains__, self.forgotten.append)

    def idle(self) -> None:
        """Requests without an agent, until the window and the last scores know of nobody else."""
        requests_of(self.registry, *[None] * 8)

    @property
    def known(self) -> set[str]:
        return {agent["name"] for agent in self.registry.summary()["agents"]} - {OTHER}


def test_the_agent_seen_least_recently_gives_its_slot_to_a_new_one() -> None:
    slots = Slots()
    requests_of(slots.registry, "a", "b", "c", "a")
    slots.idle()
    requests_of(slots.registry, "d")
    assert (slots.known, slots.forgotten) == ({"a", "c", "d"}, ["b"])
    requests_of(slots.registry, "e")
    assert (slots.known, slots.forgotten) == ({"a", "d", "e"}, ["b", "c"])
    assert slots.registry.arrived("a", None, 1) == "a"
    assert slots.registry.register("f").name == OTHER, "a runs, and d and e were active just now"
    assert slots.forgotten == ["b", "c"]


def test_a_registration_takes_a_slot_and_keeps_it_the_longest() -> None:
    slots = Slots(max_agents=2)
    requests_of(slots.registry, "a", "b")
    slots.registry.register("a", "writes patches")
    slots.idle()
    assert slots.registry.register("c").name == "c"
    assert slots.forgotten == ["b"], "a was seen before it, but it is announced"
    requests_of(slots.registry, "c")
    assert slots.registry.arrived("d", None, 1) == "d"
    assert slots.known == {"c", "d"}, "no client takes slots for good"


def test_a_tenant_has_a_share_of_the_slots() -> None:
    slots = Slots(max_agents=4, max_tenant_agents=2)
    requests_of(slots.registry, "t|a", "t|b", "u|a", "t|c")
    assert slots.known == {"t|a", "t|b", "u|a"}
    requests_of(slots.registry, "own")
    assert slots.known == {"t|a", "t|b", "u|a", "own"}
    slots.idle()
    requests_of(slots.registry, "t|d")
    assert slots.forgotten == ["t|a"], "a tenant makes room among its own"
    requests_of(slots.registry, "u|b")
    assert slots.forgotten == ["t|a", "t|b"], (
        "the least recent of all, as long as the tenant has not had its share"
    )


def test_tenants_count_the_slots_that_they_have() -> None:
    slots = Slots(max_agents=8, max_tenant_agents=1)
    for number in range(6):
        requests_of(slots.registry, f"t|{number}")
        slots.idle()
    assert slots.known == {"t|5"}
    assert slots.registry._of_tenant == {"t": 1}


def test_a_view_is_of_one_tenant_or_of_all() -> None:
    registry = AgentRegistry(max_agents=8)
    registry.register("planner", session="run-1")
    for tenant in ("t", "u"):
        registry.register(f"{tenant}|planner", session=f"{tenant}|run-1")
        registry.reused(f"{tenant}|planner", {f"{tenant}|writer": 3, "planner": 4})
    requests_of(registry, None)

    everything = View(everything=True)
    shown = everything.of(registry.summary(everything), OTHER)
    assert {(agent["tenant"], agent["name"]) for agent in shown["agents"]} == {
        (None, "planner"),
        ("t", "planner"),
        ("u", "planner"),
        (None, OTHER),
    }
    assert shown["sessions"] == {"active": 3, "ended": 0}
    assert len(shown["sharing"]) == 4
    assert shown["rounds"] == 0

    for tenant in ("t", None):
        view = View(everything=False, tenant=tenant)
        shown = view.of(registry.summary(view), OTHER)
        assert [(agent["tenant"], agent["name"]) for agent in shown["agents"]] == [(tenant, "planner")]
        assert shown["sessions"] == {"active": 1}
        assert [edge["producer"] for edge in shown["sharing"]] == (["writer"] if tenant else [])
        assert shown.keys() == {"tenant", "agents", "sharing", "sessions"}


def test_a_session_is_ended_by_its_own_tenant_alone() -> None:
    registry = AgentRegistry(max_agents=8)
    registry.arrived("t|a", "t|run-1", 1)
    assert registry.end_session("run-1") is None
    assert registry.end_session("u|run-1") is None
    assert registry.end_session("t|run-1") == 1


def test_who_is_in_the_window_keeps_its_slot() -> None:
    slots = Slots(max_agents=1)
    requests_of(slots.registry, "a")
    names = [slots.registry.arrived("b", None, 1) for _ in range(7)]
    # The window of two rounds, of two requests each, holds its request until the seventh closes the third round.
    assert names == [OTHER] * 6 + ["b"]


def test_who_runs_something_keeps_its_slot() -> None:
    slots = Slots(max_agents=1)
    slots.registry.arrived("a", None, 1)
    slots.idle()
    slots.idle()
    assert slots.registry.arrived("b", None, 1) == OTHER
    slots.registry.left("a", cached_tokens=0, generated=0, replayed=0)
    slots.idle()
    assert slots.registry.arrived("b", None, 1) == "b"


def test_whose_kv_is_resident_keeps_its_slot() -> None:
    slots = Slots(max_agents=1)
    requests_of(slots.registry, "a")
    slots.holding.add("a")
    slots.idle()
    assert slots.registry.arrived("b", None, 1) == OTHER
    slots.holding.clear()
    slots.idle()
    assert slots.registry.arrived("b", None, 1) == "b"


def test_counts_of_a_forgotten_agent_go_to_the_others() -> None:
    slots = Slots(max_agents=1)
    requests_of(slots.registry, "a", "a")
    slots.idle()
    requests_of(slots.registry, "b")
    b, others = sorted(slots.registry.summary()["agents"], key=lambda agent: str(agent["name"]))
    assert (b["name"], b["requests"]) == ("b", 1)
    assert (others["name"], others["requests"], others["prompt_tokens"]) == (OTHER, 2 + 8, 100)
    assert (others["cached_tokens"], others["tokens_generated"], others["tokens_replayed"]) == (90, 10, 10)
    requests_of(slots.registry, "a")
    assert slots.registry.profile("a").name == OTHER, "it comes as any new one"


def test_a_request_leaves_under_the_name_that_it_arrived_under() -> None:
    slots = Slots(max_agents=1)
    requests_of(slots.registry, "a")
    early = slots.registry.arrived("b", None, 1)
    slots.idle()
    late = slots.registry.arrived("b", None, 1)
    assert (early, late) == (OTHER, "b")
    for name in (early, late):
        slots.registry.left(name, cached_tokens=0, generated=1, replayed=0)
    assert not slots.registry.window._running
    assert slots.registry.profile("b").tokens_generated == 1


def test_looking_an_agent_up_takes_no_slot() -> None:
    slots = Slots(max_agents=1)
    requests_of(slots.registry, "a")
    slots.idle()
    slots.registry.profile("b")
    slots.registry.place("b", 1, max_passes=100)
    assert (slots.known, slots.forgotten) == ({"a"}, [])


def test_that_no_slot_is_left_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    slots = Slots(max_agents=2)
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            slots.registry.register(name)
        slots.registry.arrived(None, None, 1)
        assert not caplog.records
        for number in range(5):
            slots.registry.arrived(f"late-{number}", None, 1)
    (record,) = caplog.records
    assert "all 2 slots" in record.getMessage()
    assert "--hive-max-agents" in record.getMessage()


def test_a_search_for_a_slot_that_found_none_is_not_repeated_in_its_round() -> None:
    asked: list[str] = []
    registry = AgentRegistry(4, window=WindowSettings(round_requests=8, rounds=1))

    def holds(agent: str) -> bool:
        asked.append(agent)
        return True

    registry.reuse_slots(holds, lambda _agent: None)
    requests_of(registry, *"abcd", *[None] * 20)
    assert registry.window.round == 2
    for number in range(16):
        assert registry.arrived(f"late-{number}", None, 1) == OTHER
    assert asked == list("abcd" * 3), "in rounds 2, 3 and 4"


def test_until_somebody_says_whose_kv_is_resident_no_slot_is_reused() -> None:
    registry = AgentRegistry(max_agents=1, window=WindowSettings(round_requests=1, rounds=1))
    requests_of(registry, "a", *[None] * 8, "b")
    assert {agent["name"] for agent in registry.summary()["agents"]} == {"a", OTHER}


NAMES = st.sampled_from([None, *"abcdefg"])


@given(st.lists(st.tuples(NAMES, st.integers(0, 3), st.booleans()), max_size=120))
@settings(max_examples=200, deadline=None)
def test_slots_are_bounded_nothing_is_lost_and_two_ranks_agree(
    events: list[tuple[str | None, int, bool]],
) -> None:
    ranks = [Slots(max_agents=2, rounds=1) for _ in range(2)]
    running: list[str] = []
    for name, of_running, register in events:
        if register and name is not None:
            assert len({rank.registry.register(name).name for rank in ranks}) == 1
        counted = {rank.registry.arrived(name, None, 10) for rank in ranks}
        assert len(counted) == 1
        running.append(counted.pop())
        while len(running) > of_running:
            agent = running.pop(0)
            for rank in ranks:
                rank.registry.left(agent, cached_tokens=9, generated=1, replayed=2)
        for rank in ranks:
            assert len(rank.known) <= 2
            assert rank.registry.window._running.total() == len(running)
            assert set(running) <= rank.known | {OTHER}, "who runs something keeps its slot"
    one, other = (rank.registry.summary() for rank in ranks)
    assert one == other
    assert ranks[0].forgotten == ranks[1].forgotten
    for what, each in (("requests", 1), ("prompt_tokens", 10)):
        assert sum(agent[what] for agent in one["agents"]) == each * len(events)
    ended = len(events) - len(running)
    for what, each in (("cached_tokens", 9), ("tokens_generated", 1), ("tokens_replayed", 2)):
        assert sum(agent[what] for agent in one["agents"]) == each * ended
