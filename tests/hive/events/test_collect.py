"""Events say what ``/hive/agents`` and ``/hive/stats`` say, and ranks add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest

msgspec = pytest.importorskip("msgspec", reason="needs the server extra: uv pip install 'hive[server]'")

from hive.server.agents.registry import AgentRegistry  # noqa: E402
from hive.server.agents.window import WindowSettings  # noqa: E402
from hive.server.events.collect import SHOWN_AGENTS, agents_event, logits_cache_event, scores_event  # noqa: E402
from hive.server.events.event import (  # noqa: E402
    AgentLine,
    Agents,
    AnyEvent,
    RadixCache,
    Requests,
    Scores,
    SessionLine,
    Sessions,
)
from hive.server.events.merge import merged  # noqa: E402
from hive.server.eviction.accounting import NOT_RESIDENT, ResidencyAccounting  # noqa: E402
from hive.server.logits_cache.cache import LogitsCache  # noqa: E402


def busy_registry() -> tuple[AgentRegistry, ResidencyAccounting]:
    agents = AgentRegistry(1024, window=WindowSettings(round_requests=4))
    accounting = ResidencyAccounting(None)
    agents.register("writer", "writes <b>things</b>")
    for number in range(30):
        name = agents.arrived("writer" if number % 3 else "critic", "s", 10 + number)
        accounting.stored(accounting.use(name, "s"), 5)
        if number < 28:
            agents.left(name, cached_tokens=4, generated=3, replayed=1)
    return agents, accounting


def test_agents_are_told_as_the_route_tells_them() -> None:
    agents, accounting = busy_registry()
    event = agents_event(agents, accounting)
    residency = accounting.summary()
    assert event.omitted == 0
    assert [line.name for line in event.agents] == ["writer", "critic"]
    assert sum(line.running for line in event.agents) == 2
    for line, told in zip(event.agents, agents.summary()["agents"], strict=True):
        expected = {**told, **residency.get(told["name"], NOT_RESIDENT)}
        line_fields = msgspec.to_builtins(line)
        del line_fields["running"]
        assert line_fields == expected
    history = scores_event(agents)
    assert history.round == agents.window.round > 0
    assert history.history["writer"] == [
        (number, pytest.approx(score, abs=1e-4)) for number, score in agents.window.history_of("writer")
    ]


def test_the_busiest_agents_are_shown() -> None:
    agents = AgentRegistry(1024)
    for number in range(200):
        for _ in range(1 + number % 7):
            agents.arrived(f"a{number}", None, 1)
    event = agents_event(agents, None)
    assert len(event.agents) == SHOWN_AGENTS
    assert event.omitted == 200 - SHOWN_AGENTS
    asked = sorted((1 + number % 7 for number in range(200)), reverse=True)
    assert [line.requests for line in event.agents] == asked[:SHOWN_AGENTS]


def test_the_hit_ratio_is_that_of_the_statistics() -> None:
    cache = LogitsCache(2**20)
    cache.statistics.by_temperature[0.5] = Counter(tokens_replayed=30, tokens_generated=10)
    cache.statistics.by_temperature[1.0] = Counter(tokens_generated=60)
    event = logits_cache_event(cache)
    ratio = event.tokens_replayed / (event.tokens_replayed + event.tokens_generated)
    assert ratio == cache.summary()["hit_ratio"] == 0.3


def test_a_batch_survives_the_wire() -> None:
    agents, accounting = busy_registry()
    events: list[AnyEvent] = [agents_event(agents, accounting), scores_event(agents), Requests(running=1)]
    assert msgspec.convert(msgspec.to_builtins(events), list[AnyEvent]) == events


def test_ranks_add_up() -> None:
    one: list[AnyEvent] = [
        Agents([AgentLine("a", requests=5, registered=True), AgentLine("b", requests=1)]),
        Requests(running=1, queued=2),
        Sessions([SessionLine("s", ["a"], states=2, state="0", began=5.0, last_active=6.0)], ended=1),
        Scores(3, {"a": [(3, 0.5)]}),
        RadixCache("density", capacity_tokens=100, resident_tokens=10),
    ]
    two: list[AnyEvent] = [
        Agents([AgentLine("b", requests=7)], omitted=2),
        Requests(running=4),
        Sessions([SessionLine("s", ["b"], states=1, state="1", began=4.0, last_active=9.0)], ended=1),
        Scores(4, {"a": [(4, 0.9)], "b": [(4, 0.1)]}),
        RadixCache("density", capacity_tokens=100, resident_tokens=20),
    ]
    found = {type(event): event for event in merged([one, two])}
    agents = found[Agents]
    assert isinstance(agents, Agents)
    assert [(line.name, line.requests, line.registered) for line in agents.agents] == [
        ("b", 8, False),
        ("a", 5, True),
    ]
    assert found[Requests] == Requests(running=5, queued=2)
    assert found[Sessions] == Sessions(
        [SessionLine("s", ["a", "b"], states=3, state="1", began=4.0, last_active=9.0)], ended=1
    )
    assert found[Scores] == Scores(4, {"a": [(3, 0.5)], "b": [(4, 0.1)]})
    assert found[RadixCache] == RadixCache("density", capacity_tokens=200, resident_tokens=30)
    assert merged([one]) == one


def test_a_score_has_the_fields_of_the_route() -> None:
    agents, accounting = busy_registry()
    line = agents_event(agents, accounting).agents[0]
    assert line.contribution is not None
    assert msgspec.to_builtins(line.contribution) == asdict(agents.window.scores["writer"])
