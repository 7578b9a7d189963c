"""What is replayed: the scenarios, one replay by name, and many of them, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import torch

from bench.eviction.clairvoyant import clairvoyant
from bench.eviction.closed_loop import Moment
from bench.eviction.outcome import Outcome
from bench.eviction.policies import CLAIRVOYANT, POLICIES, Policy
from bench.eviction.pool_replay import PoolReplay
from bench.eviction.schedule import schedule
from bench.eviction.workload import Chat, Flood, Generator, Inflating, Rtl, Traffic, traced
from bench.traces.pool import pools_of
from bench.traces.prefix_tree import PrefixTree
from bench.traces.recording import SUFFIX, load_trace
from bench.traces.trace import Event, Trace

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
POOL_SHARES = (0.4, 0.55, 0.7)
"""Pools, as parts of the hot working set."""


@dataclass(frozen=True)
class Scenario:
    """Some traffic, and the pools (in tokens) that it is replayed with."""

    name: str
    what: str
    pools: tuple[int, ...]
    traffic: Traffic | Path
    """What is generated, or the file of a recorded trace, which is the same for every seed."""
    agents: bool = True
    """Whether there are any."""

    @property
    def recorded(self) -> bool:
        """Whether this was recorded, and not generated."""
        return isinstance(self.traffic, Path)

    def trace(self, seed: int) -> Trace:
        """The traffic of one seed."""
        if isinstance(self.traffic, Path):
            return load_trace(self.traffic)
        return traced(self.traffic.slots_of(Generator(seed)))


_FOUR_SLOTS = Rtl(slots=4, sessions=3, rounds=10)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("A", "one program whose histories are compacted", (10_500, 12_000), Rtl()),
        Scenario("A-light", "the same under light pressure", (16_000,), Rtl()),
        Scenario("P", "one program, append only", (18_000, 22_000), Rtl(compact=None)),
        Scenario("P2", "the same for 7 rounds", (11_000,), Rtl(compact=None, rounds=7)),
        Scenario(
            "B",
            "4 slots of 3 programs of 10 rounds",
            (16_000, 24_000, 34_000),
            _FOUR_SLOTS,
        ),
        Scenario("C", "B, and 400 calls that are never repeated", (24_000,), Flood(_FOUR_SLOTS, 400)),
        Scenario(
            "D",
            "B with a shared preamble, searching every round",
            (24_000,),
            Rtl(slots=4, sessions=3, rounds=10, preamble=300, search_p=1.0),
        ),
        Scenario("E", "B, and an agent that inflates its score", (30_000,), Inflating(_FOUR_SLOTS, 600)),
        Scenario("chat", "chats without agents", (12_000, 20_000, 36_000), Chat(), agents=False),
    )
}


def recorded(path: Path) -> Scenario:
    """The scenario of a recorded trace.

    Its pools are parts of what its hot agents would like to keep, rounded up to hundreds, and none of them is too
    small for the longest request. Raises `ValueError` when the file is no trace.
    """
    trace = load_trace(path)
    if not trace.requests:
        raise ValueError(f"{path.name} has no requests")
    working_set, pools = pools_of(trace, POOL_SHARES)
    return Scenario(
        f"rtl-{path.name.removesuffix(SUFFIX)}",
        f"recorded: {len(trace.requests):,} requests, hot working set of {working_set:,} tokens",
        tuple(pools),
        path,
    )


def replay(scenario: str | Scenario, pool: int, policy: str | Policy, seed: int = 0) -> Outcome:
    """Replay a scenario (one of `SCENARIOS`, by name, or any other) with a pool of so many tokens.

    The policy is one of `POLICIES`, by name, any other, or `CLAIRVOYANT`. Raises `PoolTooSmall` when a request needs
    more than the pool, `ValueError` when a file is no trace, and `Leak` when the pool does not add up afterwards.
    """
    if isinstance(scenario, str):
        scenario = SCENARIOS[scenario]
    trace, tree = _trace(scenario, seed)
    events = _events(scenario, pool, seed)
    if policy == CLAIRVOYANT:
        return clairvoyant(trace, tree, events, pool)
    if isinstance(policy, str):
        policy = POLICIES[policy]
    # All that a server knows of these answers is that they are over.
    moments = None if trace.times is None else [Moment(*times, stopped="human") for times in trace.times]
    return PoolReplay(trace, events, pool, policy, moments).run()


@lru_cache(maxsize=4)
def _trace(scenario: Scenario, seed: int) -> tuple[Trace, PrefixTree]:
    trace = scenario.trace(seed)
    return trace, PrefixTree(trace)


@lru_cache(maxsize=4)
def _events(scenario: Scenario, pool: int, seed: int) -> Sequence[Event]:
    trace, tree = _trace(scenario, seed)
    return schedule(trace, tree, pool)


class Replayed(NamedTuple):
    """One replay."""

    scenario: str
    pool: int
    policy: str
    seed: int
    outcome: Outcome


class Work(NamedTuple):
    """Replays of the same requests."""

    scenario: Scenario
    seed: int
    pools: Sequence[int]
    policies: Sequence[str]

    def done(self) -> list[Replayed]:
        return [
            Replayed(
                self.scenario.name, pool, policy, self.seed, replay(self.scenario, pool, policy, self.seed)
            )
            for pool in self.pools
            for policy in self.policies
        ]


class Part(Protocol[T_co]):
    """Work for one process."""

    def done(self) -> T_co: ...


def replayed(work: Sequence[Part[T]], workers: int) -> Iterator[T]:
    """The replays of each piece of work, as they are done by so many processes."""
    if workers == 1:
        yield from (each.done() for each in work)
        return
    # One thread each: there are enough processes, and threads do not survive a fork.
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as processes:
        for future in as_completed([processes.submit(each.done) for each in work]):
            yield future.result()
