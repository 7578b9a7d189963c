"""Replays on SGLang's radix cache: what they count, and that no token of the pool is lost."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from bench.eviction.cost import measure_cost
from bench.eviction.outcome import Outcome
from bench.eviction.policies import CLAIRVOYANT, POLICIES, Policy
from bench.eviction.pool_replay import Leak, PoolReplay
from bench.eviction.scenarios import SCENARIOS, Scenario, replay
from bench.eviction.workload import SPAMMER, Chat, Flood, Generator, Inflating, Rtl, traced
from bench.traces.trace import Event, Request, Tokens, Trace
from hive.server.eviction.policies.density import DensitySettings

_PROGRAMS = Rtl(slots=3, sessions=2, rounds=2)
SMALL = [
    Scenario("programs", "", (9_000,), _PROGRAMS),
    Scenario("flood", "", (9_000,), Flood(_PROGRAMS, 40)),
    Scenario("inflating", "", (9_000,), Inflating(_PROGRAMS, 40)),
    Scenario("chat", "", (9_000,), Chat(sessions=40), agents=False),
]


def ids(*tokens: int) -> Tokens:
    return array("q", tokens)


def trace_of(*requests: tuple[str, Tokens, Tokens]) -> Trace:
    """Requests one after another, of a session each."""
    events: list[Event] = []
    for number in range(len(requests)):
        events += [("start", number), ("finish", number), ("end", f"s{number}")]
    return Trace(
        [Request(agent, f"s{number}", *tokens) for number, (agent, *tokens) in enumerate(requests)], events
    )


def counted(outcome: Outcome) -> tuple[object, ...]:
    """What does not depend on the clock."""
    return outcome.by_agent, outcome.evicted_tokens, outcome.evict_calls


def test_lru_by_hand() -> None:
    trace = trace_of(
        ("Patcher", ids(1, 2, 3, 4), ids(5, 6)),
        ("Viewer", ids(7, 8, 9), ids(10)),
        ("Patcher", ids(1, 2, 3, 4, 5, 11), ids(12)),
        ("Other", ids(13, 14), ids(15, 16)),
        ("Patcher", ids(1, 2, 3, 4, 5, 11), ids(12)),
        ("Viewer", ids(7, 8, 9), ids(10)),
    )
    replayed = PoolReplay(trace, trace.events, 11, POLICIES["lru"])
    outcome = replayed.run()
    # The first one leaves 1 to 5: nobody reads a last token. The second one makes 8, the third 9 with 5 found.
    # The fourth fills the pool (2), and its output drops 7 8 9, of which one token was needed. Of the fifth all but
    # the last token is found, and that one is computed in a place that is free again afterwards. The last one finds
    # two places free, and drops the fourth one's output.
    assert outcome.prefill_tokens == 4 + 3 + 1 + 2 + 1 + 3
    assert (outcome.evict_calls, outcome.evicted_tokens) == (2, 3 + 1)
    assert outcome.by_agent["Patcher"].cached == 0 + 5 + 5
    assert outcome.by_agent["Viewer"].cached == 0
    assert outcome.hot_hit == 10 / (16 + 6)
    assert outcome.cold_hit == 0
    assert outcome.hit == 10 / 24


def test_the_one_who_harms_is_not_among_the_cold() -> None:
    outcome = Outcome()
    outcome.count("Patcher", 10, 5)
    outcome.count("Summary", 10, 1)
    outcome.count(SPAMMER, 100, 50)
    assert (outcome.hot_hit, outcome.cold_hit) == (0.5, 0.1)
    assert outcome.prefill_tokens == 5 + 9 + 50
    chat = Outcome()
    chat.count(None, 10, 5)
    assert (chat.hot_hit, chat.cold_hit) == (None, 0.5)
    assert Outcome().hit is None


@pytest.mark.parametrize("policy", [*POLICIES, CLAIRVOYANT])
@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_no_token_is_lost_and_clairvoyance_is_the_bound(scenario: Scenario, policy: str) -> None:
    (pool,) = scenario.pools
    # The replay itself checks its pool when it is done.
    outcome = replay(scenario, pool, policy, seed=1)
    bound = replay(scenario, pool, CLAIRVOYANT, seed=1)
    assert outcome.evicted_tokens > 0
    assert outcome.prefill_tokens >= bound.prefill_tokens
    assert outcome.prompt_tokens == bound.prompt_tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_finds_the_same_where_nothing_is_evicted(policy: str) -> None:
    outcome = replay(SMALL[0], 10**6, policy)
    bound = replay(SMALL[0], 10**6, CLAIRVOYANT)
    assert outcome.evicted_tokens == bound.evicted_tokens == 0
    assert outcome.by_agent == bound.by_agent


@pytest.mark.parametrize("policy", ["lru", "density"])
def test_replays_repeat(policy: str) -> None:
    assert counted(replay(SMALL[1], 9_000, policy)) == counted(replay(SMALL[1], 9_000, policy))


@pytest.mark.parametrize("name", ["lru", "lfu", "slru"])
def test_hives_cache_evicts_by_sglangs_policies_as_sglang_does(name: str) -> None:
    ours, stock = (replay(SMALL[0], 9_000, Policy(name, name, hive=hive)) for hive in (True, False))
    assert ours.by_agent == stock.by_agent
    assert ours.evicted_tokens == stock.evicted_tokens


def test_policies_take_settings() -> None:
    usual, forgetful = (
        replay(SMALL[0], 9_000, replace(POLICIES["density"], density=settings))
        for settings in (DensitySettings(), DensitySettings(evidence=1e9))
    )
    assert usual.by_agent == replay(SMALL[0], 9_000, "density").by_agent
    assert usual.by_agent != forgetful.by_agent


def scored(replayed: PoolReplay) -> set[str]:
    """The agents that have had a contribution."""
    return {agent for _, scores in replayed.registry.window.history for agent in scores}


def test_what_agents_tell_is_told_unless_the_policy_goes_without() -> None:
    trace = traced(_PROGRAMS.slots_of(Generator(0)))
    told = PoolReplay(trace, trace.events, 10**6, POLICIES["density"])
    told.run()
    assert scored(told) >= {"Decision", "Patcher", "Viewer"}
    assert told.registry.sessions_ended == 6
    endless = PoolReplay(trace, trace.events, 10**6, POLICIES["density-endless"])
    endless.run()
    assert endless.registry.sessions_ended == 0
    anonymous = PoolReplay(trace, trace.events, 10**6, POLICIES["density-anonymous"])
    anonymous.run()
    assert scored(anonymous) == {"other"}


def test_leaks_are_found() -> None:
    trace = trace_of(("a", ids(1, 2, 3), ids(4)), ("a", ids(5, 6, 7), ids(8)))
    lost = PoolReplay(trace, trace.events, 10, POLICIES["lru"])
    lost.allocator.alloc(1)
    with pytest.raises(Leak, match="6 tokens in the tree and 3 free are not the pool's 10"):
        lost.run()
    twice = PoolReplay(trace, trace.events, 10, POLICIES["lru"])
    twice.run()
    taken = twice.cache.all_values_flatten()[:1]
    twice.allocator.free_pages[-1:] = taken
    with pytest.raises(Leak, match="used twice"):
        twice.check()
    miscounted = PoolReplay(trace, trace.events, 10, POLICIES["lru"])
    miscounted.run()
    miscounted.cache.evictable_size_ += 1
    with pytest.raises(Leak, match="counts 7 tokens, but holds 6"):
        miscounted.check()


def test_scenarios_go_by_name() -> None:
    assert replay("P2", 11_000, "lru").prompt_tokens == replay(SCENARIOS["P2"], 11_000, "lru").prompt_tokens


def test_the_cost_of_evicting() -> None:
    rows = measure_cost(["lru", "density"], turns=2, leaves=300)
    assert [row.policy for row in rows] == ["lru", "density"]
    for row in rows:
        assert row.leaves == pytest.approx(300, abs=10)
        assert row.us_per_token > 0
        assert row.ms_per_call == pytest.approx(row.us_per_token * row.tokens_per_call / 1e3, rel=0.5)
