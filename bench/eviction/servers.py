"""Recorded runs on real servers, under each policy in turn."""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from bench.eviction.live import LiveReplay, client_of, hot_misses, replay_live
from bench.eviction.outcome import Outcome
from bench.eviction.policies import CLAIRVOYANT
from bench.eviction.report import BASELINE, POLICY, Goal, Row, gap_closed, row_of
from bench.eviction.scenarios import Scenario, replay
from bench.traces.trace import Trace, rounds_of
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

    Raises `PoolTooSmall` when a request of the run needs more than the pool.
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
    seven rounds: in the middle of a longer run no server can tell what belongs to them, since sessions do not wait
    for each other. The Logits Cache is off, since a replayed token is no use of the KV pool. Raises `ServerDied` when
    a server does not come up, and `BenchError` when one refuses a request.
    """
    runs = []
    with tempfile.TemporaryDirectory(prefix="hive-eviction-") as folder:
        for repeat in range(repeats):
            for number in rounds:
                trace = dataclasses.replace(scenario, rounds=number).trace(0)
                for policy in policies:
                    settings = ["--hive-eviction", policy, "--no-hive-logits-cache"]
                    settings += ["--max-total-tokens", str(pool)]
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
            policy: statistics.median(each.prefill_tokens for each in repeats)
            for policy, repeats in outcomes.items()
        }
        for policy, repeats in outcomes.items():
            gap = None
            if BASELINE in prefill:
                gap = gap_closed(prefill[BASELINE], prefill[policy], bound.clairvoyant.prefill_tokens)
            served = {"source": "server", "rounds": rounds, "wall_s": statistics.median(seconds[policy])}
            row = row_of(scenario.name, policy, pool, repeats, statistics.median, gap_closed=gap, **served)
            rows.append(row)
        if {BASELINE, POLICY} <= set(outcomes):
            where = f"{scenario.name}, pool {pool:,}, {rounds} rounds"
            for what, measure in (
                ("hot misses", hot_misses),
                ("evicted tokens", attrgetter("evicted_tokens")),
            ):
                share = clairvoyant_share(outcomes[BASELINE], outcomes[POLICY], bound, measure)
                if share is not None:
                    saving = f"of the clairvoyant saving of {what}, on a server"
                    goal = Goal(
                        what=saving, goal=CLAIRVOYANT_SHARE, must_be="at least", value=share, where=where
                    )
                    goals.append(goal)
    return rows, goals


def clairvoyant_share(
    baseline: Sequence[Outcome], ours: Sequence[Outcome], bound: Bound, measure: Callable[[Outcome], int]
) -> float | None:
    """The part of something that a policy saves on a server, over the part that clairvoyance saves in a replay.

    None where there is nothing to save.
    """
    possible = 1 - measure(bound.clairvoyant) / max(1, measure(bound.baseline))
    before, after = (statistics.median(measure(each) for each in outcomes) for outcomes in (baseline, ours))
    if possible <= 0 or not before:
        return None
    return (1 - after / before) / possible
