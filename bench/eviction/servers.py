"""Recorded runs on real servers, under each policy in turn."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.eviction.live import Snapshot, hot_misses, plan, replay_live
from bench.eviction.outcome import Outcome
from bench.eviction.policies import CLAIRVOYANT
from bench.eviction.report import BASELINE, POLICY, Goal, Row, gap_closed, hit_by_agent
from bench.eviction.scenarios import Scenario, replay
from hive.server_process import ServerProcess

ROUNDS = (7, 21)
"""Rounds after which the paper's Table 1 was taken."""
CLAIRVOYANT_SHARE = 0.8
"""Goal: of what the clairvoyant policy saves of hot misses and of evicted tokens in a replay of the same trace."""


class ServerRun(NamedTuple):
    """One replay on one server."""

    policy: str
    snapshots: list[Snapshot]


def run_servers(
    scenario: Scenario,
    pool: int,
    policies: Sequence[str],
    repeats: int,
    flags: Sequence[str],
    say: Callable[[str], None],
) -> list[ServerRun]:
    """Replay a recorded run on servers of their own, the policies in turn, so often.

    Each server is new: what a policy has learned would be an advantage of the later runs. The Logits Cache is off,
    since a replayed token is no use of the KV pool.

    Raises:
        ServerDied: when a server does not come up.
        BenchError: when one refuses a request.
    """
    trace = scenario.trace(0)
    last = max(plan(trace).rounds)
    rounds = sorted({min(number, last) for number in ROUNDS})
    runs = []
    with tempfile.TemporaryDirectory(prefix="hive-eviction-") as folder:
        for repeat in range(repeats):
            for policy in policies:
                settings = [
                    "--hive-eviction",
                    policy,
                    "--no-hive-logits-cache",
                    "--max-total-tokens",
                    str(pool),
                ]
                server = ServerProcess([*settings, *flags], Path(folder) / f"{policy}-{repeat}.log")
                try:
                    server.wait()
                    snapshots = asyncio.run(replay_live(server.url, trace, rounds))
                finally:
                    server.stop()
                runs.append(ServerRun(policy, snapshots))
                say(
                    f"server, {policy}, run {repeat + 1} of {repeats}: {snapshots[-1].seconds:.0f} s, "
                    f"{snapshots[-1].outcome.prefill_tokens:,} tokens prefilled"
                )
    return runs


def rows_and_goals(scenario: Scenario, pool: int, runs: Sequence[ServerRun]) -> tuple[list[Row], list[Goal]]:
    """Rows by policy and round, medians over the repeats; and goals, if the baseline and Hive's policy ran."""
    bounds = {name: replay(scenario, pool, name) for name in (BASELINE, CLAIRVOYANT)}
    policies = list(dict.fromkeys(run.policy for run in runs))
    rows = []
    for place, first in enumerate(runs[0].snapshots):
        prefill = {
            policy: _median(each.outcome.prefill_tokens for each in _of(runs, policy, place))
            for policy in policies
        }
        for policy in policies:
            snapshots = _of(runs, policy, place)
            # Repeats differ in timing alone; the one in the middle stands for them.
            middle = sorted(snapshots, key=lambda each: each.outcome.prefill_tokens)[len(snapshots) // 2]
            rows.append(
                Row(
                    scenario=scenario.name,
                    policy=policy,
                    pool=pool,
                    source="server",
                    gap_closed=(
                        gap_closed(prefill[BASELINE], prefill[policy], bounds[CLAIRVOYANT].prefill_tokens)
                        if BASELINE in prefill and place == len(runs[0].snapshots) - 1
                        else None
                    ),
                    gap_closed_by_seed=[],
                    hit=middle.outcome.hit or 0.0,
                    hot_hit=middle.outcome.hot_hit,
                    cold_hit=middle.outcome.cold_hit,
                    hit_by_agent=hit_by_agent([middle.outcome]),
                    evicted_tokens=_median(each.outcome.evicted_tokens for each in snapshots),
                    evict_calls=0,
                    prefill_tokens=prefill[policy],
                    prompt_tokens=middle.outcome.prompt_tokens,
                    seeds=len(snapshots),
                    swept=False,
                    rounds=first.round,
                    wall_s=_median(each.seconds for each in snapshots),
                )
            )
    goals = [
        _goal(f"of the clairvoyant saving of {what}, on a server", scenario, pool, runs, bounds, measure)
        for what, measure in (("hot misses", hot_misses), ("evicted tokens", _evicted))
        if {BASELINE, POLICY} <= set(policies)
    ]
    return rows, [goal for goal in goals if goal is not None]


def _goal(
    what: str,
    scenario: Scenario,
    pool: int,
    runs: Sequence[ServerRun],
    bounds: dict[str, Outcome],
    measure: Callable[[Outcome], int],
) -> Goal | None:
    """What the policy saves of something on a server, over what clairvoyance saves of it in a replay."""
    baseline, ours = (
        _median(measure(each.outcome) for each in _of(runs, policy, -1)) for policy in (BASELINE, POLICY)
    )
    possible = 1 - measure(bounds[CLAIRVOYANT]) / max(1, measure(bounds[BASELINE]))
    if possible <= 0 or not baseline:
        return None
    return Goal(
        what=what,
        goal=CLAIRVOYANT_SHARE,
        must_be="at least",
        value=(1 - ours / baseline) / possible,
        where=f"{scenario.name}, pool {pool:,}",
    )


def _of(runs: Sequence[ServerRun], policy: str, place: int) -> list[Snapshot]:
    return [run.snapshots[place] for run in runs if run.policy == policy]


def _evicted(outcome: Outcome) -> int:
    return outcome.evicted_tokens


def _median(values: Iterable[float]) -> float:
    return float(statistics.median(values))
