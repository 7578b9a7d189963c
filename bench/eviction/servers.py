"""Recorded runs on real servers, under each policy in turn."""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.eviction.live import LiveReplay, client_of, hot_misses, replay_live
from bench.eviction.outcome import Outcome
from bench.eviction.policies import CLAIRVOYANT
from bench.eviction.report import BASELINE, POLICY, Goal, Row, gap_closed, hit_by_agent
from bench.eviction.rounds import rounds_of
from bench.eviction.scenarios import Scenario, replay
from bench.eviction.trace import Trace
from hive.server.server_process import ServerProcess

ROUNDS = (7, 21)
"""How many rounds of each session are replayed: as in the paper's Table 1."""
CLAIRVOYANT_SHARE = 0.8
"""Goal: of what the clairvoyant policy saves of hot misses and of evicted tokens in a replay of the same trace."""


class ServerRun(NamedTuple):
    """One replay on one server."""

    rounds: int
    """Of each session."""
    policy: str
    outcome: Outcome
    seconds: float


class Bound(NamedTuple):
    """What replays of the same rounds say: without knowledge of the future, and with."""

    baseline: Outcome
    clairvoyant: Outcome


def bounds_of(scenario: Scenario, pool: int) -> dict[int, Bound]:
    """By the rounds of each session that are replayed.

    Raises:
        PoolTooSmall: when a request of the run needs more than the pool.
    """
    last = max(rounds_of(scenario.trace(0)))
    bounds = {}
    for rounds in sorted({min(number, last) for number in ROUNDS}):
        part = dataclasses.replace(scenario, rounds=rounds)
        bounds[rounds] = Bound(replay(part, pool, BASELINE), replay(part, pool, CLAIRVOYANT))
    return bounds


def run_servers(
    scenario: Scenario,
    pool: int,
    rounds: Sequence[int],
    policies: Sequence[str],
    repeats: int,
    flags: Sequence[str],
    say: Callable[[str], None],
) -> list[ServerRun]:
    """Replay a recorded run on servers of their own, the policies in turn, so often.

    Each server is new: what a policy has learned would be an advantage of the later runs. So is that of the first
    seven rounds: in the middle of a longer run no server can tell what belongs to them, since sessions do not wait for
    each other. The Logits Cache is off, since a replayed token is no use of the KV pool.

    Raises:
        ServerDied: when a server does not come up.
        BenchError: when one refuses a request.
    """
    runs = []
    with tempfile.TemporaryDirectory(prefix="hive-eviction-") as folder:
        for repeat in range(repeats):
            for number in rounds:
                trace = dataclasses.replace(scenario, rounds=number).trace(0)
                for policy in policies:
                    settings = [
                        "--hive-eviction",
                        policy,
                        "--no-hive-logits-cache",
                        "--max-total-tokens",
                        str(pool),
                    ]
                    log = Path(folder) / f"{policy}-{number}-{repeat}.log"
                    server = ServerProcess([*settings, *flags], log)
                    try:
                        server.wait()
                        outcome, seconds = asyncio.run(_replayed(server.url, trace))
                    finally:
                        server.stop()
                    runs.append(ServerRun(number, policy, outcome, seconds))
                    say(
                        f"server, {policy}, {number} rounds, run {repeat + 1} of {repeats}: {seconds:.0f} s, "
                        f"{outcome.prefill_tokens:,} tokens prefilled"
                    )
    return runs


async def _replayed(url: str, trace: Trace) -> LiveReplay:
    async with client_of(url) as http:
        return await replay_live(http, trace)


def rows_and_goals(
    scenario: Scenario, pool: int, bounds: Mapping[int, Bound], runs: Sequence[ServerRun]
) -> tuple[list[Row], list[Goal]]:
    """Rows by rounds and policy, medians over the repeats; and goals, if the baseline and Hive's policy ran."""
    rows: list[Row] = []
    goals: list[Goal] = []
    for rounds, bound in bounds.items():
        outcomes: dict[str, list[Outcome]] = {}
        seconds: dict[str, list[float]] = {}
        for run in runs:
            if run.rounds == rounds:
                outcomes.setdefault(run.policy, []).append(run.outcome)
                seconds.setdefault(run.policy, []).append(run.seconds)
        prefill = {
            policy: _median(each.prefill_tokens for each in repeats) for policy, repeats in outcomes.items()
        }
        for policy, repeats in outcomes.items():
            rows.append(
                Row(
                    scenario=scenario.name,
                    policy=policy,
                    pool=pool,
                    source="server",
                    gap_closed=(
                        gap_closed(prefill[BASELINE], prefill[policy], bound.clairvoyant.prefill_tokens)
                        if BASELINE in prefill
                        else None
                    ),
                    gap_closed_by_seed=[],
                    hit=_median_of(each.hit for each in repeats) or 0.0,
                    hot_hit=_median_of(each.hot_hit for each in repeats),
                    cold_hit=_median_of(each.cold_hit for each in repeats),
                    hit_by_agent=hit_by_agent(repeats),
                    evicted_tokens=_median(each.evicted_tokens for each in repeats),
                    evict_calls=None,
                    prefill_tokens=prefill[policy],
                    prompt_tokens=_median(each.prompt_tokens for each in repeats),
                    seeds=len(repeats),
                    swept=False,
                    rounds=rounds,
                    wall_s=_median(seconds[policy]),
                )
            )
        if {BASELINE, POLICY} <= set(outcomes):
            where = f"{scenario.name}, pool {pool:,}, {rounds} rounds"
            for what, measure in (("hot misses", hot_misses), ("evicted tokens", _evicted)):
                share = clairvoyant_share(outcomes[BASELINE], outcomes[POLICY], bound, measure)
                if share is not None:
                    goals.append(
                        Goal(
                            what=f"of the clairvoyant saving of {what}, on a server",
                            goal=CLAIRVOYANT_SHARE,
                            must_be="at least",
                            value=share,
                            where=where,
                        )
                    )
    return rows, goals


def clairvoyant_share(
    baseline: Sequence[Outcome], ours: Sequence[Outcome], bound: Bound, measure: Callable[[Outcome], int]
) -> float | None:
    """The part of something that a policy saves on a server, over the part that clairvoyance saves in a replay.

    None where there is nothing to save.
    """
    possible = 1 - measure(bound.clairvoyant) / max(1, measure(bound.baseline))
    before, after = (_median(measure(each) for each in outcomes) for outcomes in (baseline, ours))
    if possible <= 0 or not before:
        return None
    return (1 - after / before) / possible


def _evicted(outcome: Outcome) -> int:
    return outcome.evicted_tokens


def _median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


def _median_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _median(known) if known else None
