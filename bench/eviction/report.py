"""What a run leaves behind: the JSON file and the tables on the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, Field
from rich.table import Table

from bench.eviction.cost import CostRow
from bench.eviction.outcome import Outcome
from bench.eviction.policies import CLAIRVOYANT
from bench.eviction.scenarios import Replayed, Scenario
from bench.harness.command import HowMade
from bench.harness.goals import Goal as AnyGoal
from bench.harness.statistics import mean
from bench.harness.tables import met, number, table

BASELINE = "lru"
POLICY = "density"
"""Whose figures have goals."""
GAP_CLOSED = 0.6
"""Goal in every scenario with agents, for every pool."""
GAP_CLOSED_B = 0.9
"""Goal in scenario B at `LARGE_B`."""
LARGE_B = 34_000
MORE_PREFILL = 1.02
"""Against LRU, on traffic without agents: the goal is to stay below."""
LEAST_GAP = 0.01
"""Of LRU's prefill: where clairvoyance saves less, the share that a policy saves of it says nothing."""


class Row(BaseModel):
    """A policy in a scenario with some pool: means over the seeds."""

    scenario: str
    policy: str
    pool: int
    gap_closed: float | None = None
    """(LRU's prefill - this one's) / (LRU's prefill - the clairvoyant one's); None where there is no gap."""
    gap_closed_by_seed: list[float | None] = []
    hit: float
    """Prompt tokens found in the cache over all prompt tokens."""
    hot_hit: float | None
    """The same over those of Patcher, Viewer and Decision."""
    cold_hit: float | None
    """The same over those of all other agents but the one that does harm."""
    evicted_tokens: float
    evict_calls: float
    prefill_tokens: float
    prompt_tokens: float
    seeds: int


class SessionRow(BaseModel):
    """One policy with one pool and the sessions of one seed."""

    policy: str
    pool: int
    """Tokens."""
    seed: int
    sessions: int
    requests: int
    prompt_blocks: int
    missed: float
    """Blocks of prompts that were not found, over all of them."""
    gap_closed: float | None
    """(LRU's misses - this one's) / (LRU's misses - the clairvoyant one's); None where there is no gap."""
    evictions: int
    """Calls that had to evict."""
    evicted_blocks: int
    us_per_block: float | None
    """Microseconds of the process for each block evicted; None for the clairvoyant one."""


class ServedRow(BaseModel):
    """The same on a real server."""

    policy: str
    pool: int
    """Tokens, as the server has them."""
    shrink: int
    """Blocks became so many times smaller."""
    speed: float
    """Pauses became so many times shorter."""
    sessions: int
    requests: int
    prompt_tokens: int
    prefill_tokens: int
    """Prompt tokens that the server had to compute."""
    ttft_ms: tuple[float, float] | None
    """Milliseconds to the first token, 50th and 99th percentile."""
    returning_ttft_ms: tuple[float, float] | None
    """Without the first request of each session."""
    wall_s: float
    """From the first request to the last answer."""


class Goal(AnyGoal):
    """A figure, and what it should be."""

    where: str
    """The scenario and pool that the value is of: the worst."""


class Report(HowMade):
    """The JSON file."""

    scenarios: dict[str, str] = Field(default_factory=dict)
    """What each one is."""
    goals: list[Goal] = Field(default_factory=list)
    rows: list[Row] = Field(default_factory=list)
    cost: list[CostRow] = Field(default_factory=list)
    sessions: list[SessionRow] = Field(default_factory=list)
    served: list[ServedRow] = Field(default_factory=list)


def rows_of(scenarios: Iterable[Scenario], results: Sequence[Replayed]) -> list[Row]:
    """One row for each scenario, pool and policy, in the order of `scenarios`, of growing pools, and of policies."""
    outcomes: dict[tuple[str, int, str], dict[int, Outcome]] = {}
    for result in results:
        outcomes.setdefault((result.scenario, result.pool, result.policy), {})[result.seed] = result.outcome
    rows: list[Row] = []
    for scenario in scenarios:
        places = [place for place in outcomes if place[0] == scenario.name]
        for place in sorted(places, key=lambda place: place[1]):
            _, pool, policy = place
            seeds = outcomes[place]
            baseline, bound = (outcomes[scenario.name, pool, name] for name in (BASELINE, CLAIRVOYANT))
            gap_by_seed = [
                gap_closed(*(each[seed].prefill_tokens for each in (baseline, seeds, bound)))
                for seed in sorted(seeds)
            ]
            rows.append(
                Row(
                    scenario=scenario.name,
                    policy=policy,
                    pool=pool,
                    gap_closed=gap_closed(
                        *(_mean_prefill(each.values()) for each in (baseline, seeds, bound))
                    ),
                    gap_closed_by_seed=gap_by_seed,
                    hit=mean(each.hit for each in seeds.values()) or 0.0,
                    hot_hit=mean(each.hot_hit for each in seeds.values()),
                    cold_hit=mean(each.cold_hit for each in seeds.values()),
                    evicted_tokens=statistics.fmean(each.evicted_tokens for each in seeds.values()),
                    evict_calls=statistics.fmean(each.evict_calls for each in seeds.values()),
                    prefill_tokens=_mean_prefill(seeds.values()),
                    prompt_tokens=statistics.fmean(each.prompt_tokens for each in seeds.values()),
                    seeds=len(seeds),
                )
            )
    return rows


def gap_closed(baseline: float, prefill: float, bound: float) -> float | None:
    """The share of what clairvoyance saves over the baseline that a policy saves; None if it saves next to nothing."""
    gap = baseline - bound
    return (baseline - prefill) / gap if gap > LEAST_GAP * baseline else None


def goals_of(rows: Sequence[Row], scenarios: Iterable[Scenario]) -> list[Goal]:
    """The goals that the rows say something about."""
    with_agents = {scenario.name: scenario.agents for scenario in scenarios}
    mine = [row for row in rows if row.policy == POLICY]
    goals: list[Goal] = []
    gaps = [(row.gap_closed, row) for row in mine if row.gap_closed is not None and with_agents[row.scenario]]
    large = [(gap, row) for gap, row in gaps if (row.scenario, row.pool) == ("B", LARGE_B)]
    for found, goal, what in (
        (large, GAP_CLOSED_B, f"gap closed in B with {LARGE_B:,} tokens"),
        (gaps, GAP_CLOSED, "gap closed, least of all scenarios and pools"),
    ):
        if found:
            value, row = min(found, key=lambda item: item[0])
            goals.append(Goal(what=what, goal=goal, must_be="at least", value=value, where=_place(row)))
    baseline = {(row.scenario, row.pool): row.prefill_tokens for row in rows if row.policy == BASELINE}
    ratios = [
        (row.prefill_tokens / baseline[row.scenario, row.pool], row)
        for row in mine
        if not with_agents[row.scenario]
    ]
    if ratios:
        value, row = max(ratios, key=lambda item: item[0])
        what = "prefill over LRU's without agents, most of all pools"
        goals.append(Goal(what=what, goal=MORE_PREFILL, must_be="at most", value=value, where=_place(row)))
    return goals


def rows_table(rows: Sequence[Row]) -> Table:
    headings = (
        *("scenario", "pool", "policy", "gap closed", "by seed"),
        *("hit", "hot", "cold", "prefill", "evicted"),
    )
    cells = (
        (
            *(row.scenario, f"{row.pool:,}", row.policy, number(row.gap_closed, "+.2f")),
            " ".join(number(gap, "+.2f") for gap in row.gap_closed_by_seed),
            *_hits(row),
        )
        for row in rows
    )
    return table("Eviction, in replays", headings, cells, left=3, sections=2)


def _hits(row: Row) -> Sequence[str]:
    hits = (f"{row.hit:.1%}", number(row.hot_hit, ".1%"), number(row.cold_hit, ".1%"))
    return (*hits, f"{row.prefill_tokens:,.0f}", f"{row.evicted_tokens:,.0f}")


def cost_table(rows: Sequence[CostRow]) -> Table:
    headings = ("policy", "leaves", "µs per token", "ms per call", "tokens per call")
    cells = (
        (
            *(row.policy, f"{row.leaves:,}", f"{row.us_per_token:.2f}", f"{row.ms_per_call:.2f}"),
            f"{row.tokens_per_call:,.0f}",
        )
        for row in rows
    )
    return table("Cost of evicting", headings, cells)


def goals_table(goals: Sequence[Goal]) -> Table:
    cells = (
        (goal.what, f"{goal.value:.3f}", goal.where, f"{goal.must_be} {goal.goal:g}", met(goal.met))
        for goal in goals
    )
    headings = ("figure", "value", "where", "goal", "")
    return table(f"Goals of {POLICY}", headings, cells, left=("figure", "where", "goal", ""))


def sessions_table(rows: Sequence[SessionRow]) -> Table:
    """Means over the seeds, by pool and policy."""
    places: dict[tuple[int, str], list[SessionRow]] = {}
    for row in sorted(rows, key=lambda row: (row.pool, row.seed)):
        places.setdefault((row.pool, row.policy), []).append(row)
    cells = (
        (
            f"{pool:,}",
            policy,
            f"{statistics.fmean(row.missed for row in found):.1%}",
            number(mean(row.gap_closed for row in found), ".0%"),
            " ".join(number(row.gap_closed, ".0%") for row in found),
            f"{statistics.fmean(row.evictions for row in found):,.0f}",
            f"{statistics.fmean(row.evicted_blocks for row in found):,.0f}",
            number(mean(row.us_per_block for row in found), ".3f"),
        )
        for (pool, policy), found in places.items()
    )
    headings = (
        *("pool", "policy", "missed", "gap closed"),
        *("by seed", "evictions", "blocks evicted", "µs per block"),
    )
    return table("Eviction, sessions of a trace", headings, cells, left=("pool", "policy"), sections=1)


def served_table(rows: Sequence[ServedRow]) -> Table:
    """Sessions on servers, by pool and policy."""
    cells = (
        (
            *(f"{row.pool:,}", row.policy, f"{row.prefill_tokens:,}"),
            f"{1 - row.prefill_tokens / row.prompt_tokens:.1%}",
            *(_milliseconds(percentiles) for percentiles in (row.ttft_ms, row.returning_ttft_ms)),
            f"{row.wall_s:.0f}",
        )
        for row in rows
    )
    headings = ("pool", "policy", "prefill", "cached", "TTFT ms, p50 p99", "of returning", "seconds")
    return table("Eviction, sessions on servers", headings, cells, left=("pool", "policy"), sections=1)


def _milliseconds(percentiles: tuple[float, float] | None) -> str:
    return "-" if percentiles is None else " ".join(f"{value:,.0f}" for value in percentiles)


def _place(row: Row) -> str:
    return f"{row.scenario}, {row.pool:,}"


def _mean_prefill(outcomes: Iterable[Outcome]) -> float:
    return statistics.fmean(outcome.prefill_tokens for outcome in outcomes)
