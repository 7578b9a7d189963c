"""What a run leaves behind: the JSON file and the table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import BaseModel
from rich.table import Table

from bench.harness import tables
from bench.harness.command import HowMade
from bench.harness.tables import number
from bench.logits_cache.analysis import (
    Crossing,
    Figures,
    Overhead,
    Speeds,
    counted,
    crossing,
    figures,
    share_distinct,
    share_same,
)
from bench.logits_cache.arms import REPLAYING, ArmName
from bench.logits_cache.micro import MicroResult
from bench.logits_cache.run import BlockResult
from bench.logits_cache.short_extends import ShortExtends
from bench.logits_cache.toll import TollRow
from bench.logits_cache.workloads import Variant, WorkloadName

PAPER_SPEEDUPS = (1.11, 1.76)
"""The least and the largest mean speed-up that the paper reports."""


Population = Literal["resamples", "all_requests"]
"""Whose speed-up: the mean over resamples that the model had a part in, as in the paper, or that of all requests
together (time with replay off over time here), where a mean of ratios would be that of the few served wholly."""
POPULATIONS: tuple[Population, ...] = get_args(Population)


class Row(Speeds):
    """One arm in one block.

    Speeds and speed-ups leave out what was served wholly from the cache (``excluded``); ``hit_ratio`` does not.
    ``resamples`` is the paper's view (every first sample of a state left out, too), ``all_requests`` leaves out
    nothing.
    """

    workload: WorkloadName
    grammar: bool
    arm: ArmName
    temperature: float
    sharpness: float
    concurrency: int
    states: int
    samples: int
    max_tokens: int
    hit_ratio_counted: float | None
    """The same over the requests that speeds are computed from."""
    excluded: int
    entropy_mean: float | None
    """Nats, of the distributions that tokens were drawn from; 0 at temperature 0."""
    entropy_half_width: float | None
    """How far the true mean may be off for want of the distributions' tails."""
    entropy_model_mean: float | None
    """Nats, of the model's own distributions at temperature 1; known for temperatures 0 and 1 only."""
    same_as_off: float
    """Share of the outputs that are, token for token, those with replay off: an engine's rounding depends on what
    else is in its batch, so it may fall short of 1 without the cache's doing, and other samplers differ anyway."""
    distinct_outputs: float
    """Different outputs of each state over all outputs: 1 when no two samples of a state are alike."""
    wall_speedup: float
    """Time of the whole block with replay off over its time here."""
    resamples: Figures
    all_requests: Figures


class EntropyCrossing(BaseModel):
    """Up to which entropy an arm reaches one of the paper's speed-ups, one request at a time."""

    arm: ArmName
    population: Population
    crossing: Crossing


class Report(HowMade):
    """The JSON file."""

    model: str
    left_out: dict[str, str]
    """Arms and blocks that were not measured, and why."""
    rows: list[Row]
    memory_bytes_per_token: float | None
    """Bytes of the Logits Cache over states kept, at the ends of all turns of the step-wise arm."""
    replay_tokens_per_s: float | None
    """One core, without an engine, at a vocabulary of 152k and temperature 0.7."""
    replay_tokens_per_s_server: float | None
    """The same by the server's own clock in all turns of the step-wise arm, with this model."""
    record_overhead: float | None
    """Share of stock SGLang's decode speed lost while recording, at the highest concurrency measured, by the model
    itself and at a temperature alone."""
    record_overhead_details: list[Overhead]
    short_extends: list[ShortExtends]
    replay_micro: list[MicroResult]
    toll: list[TollRow]
    entropy_crossings: list[EntropyCrossing]


def rows_of(result: BlockResult) -> list[Row]:
    block, base = result.block, result.samples["off"]
    stock = result.samples.get("stock")
    greedy = block.temperature == 0
    middle = result.entropy.middle if result.entropy else None
    rows: list[Row] = []
    for arm, samples in result.samples.items():
        keys = counted(samples)
        everything = figures(samples, base, stock, samples)
        main = figures(samples, base, stock, keys)
        rows.append(
            Row(
                workload=block.workload,
                grammar=block.grammar,
                arm=arm,
                temperature=block.temperature,
                sharpness=block.sharpness,
                concurrency=block.concurrency,
                states=block.states,
                samples=block.samples,
                max_tokens=block.max_tokens,
                hit_ratio=everything.hit_ratio,
                hit_ratio_counted=main.hit_ratio,
                **main.model_dump(exclude={"requests", "hit_ratio", "achieved", "ideal"}),
                excluded=len(samples) - len(keys),
                entropy_mean=0.0 if greedy else middle,
                entropy_half_width=result.entropy.half_width if result.entropy else None,
                entropy_model_mean=middle if block.temperature in (0, 1) else None,
                same_as_off=share_same(samples, base),
                distinct_outputs=share_distinct(samples),
                wall_speedup=result.wall_s["off"] / result.wall_s[arm],
                resamples=figures(samples, base, stock, [key for key in keys if key[1] > 0]),
                all_requests=everything,
            )
        )
    return rows


def entropy_points(rows: Sequence[Row], arm: ArmName, population: Population) -> list[tuple[float, float]]:
    """(entropy, speed-up) of an arm over long outputs at the lowest concurrency measured, by entropy."""
    long = [row for row in rows if row.arm == arm and row.workload != "search"]
    least = min((row.concurrency for row in long), default=0)
    points: list[tuple[float, float]] = []
    for row in long:
        speedup = row.resamples.speedup_mean if population == "resamples" else row.all_requests.achieved
        if row.concurrency == least and row.entropy_mean is not None and speedup is not None:
            points.append((row.entropy_mean, speedup))
    return sorted(points)


def crossings(rows: Sequence[Row]) -> list[EntropyCrossing]:
    """For every replaying arm, population and speed-up of the paper."""
    found: list[EntropyCrossing] = []
    for arm in REPLAYING:
        for population in POPULATIONS:
            points = entropy_points(rows, arm, population)
            if points:
                found += [
                    EntropyCrossing(arm=arm, population=population, crossing=crossing(points, speedup))
                    for speedup in PAPER_SPEEDUPS
                ]
    return found


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal; ``all`` is the speed-up of all requests together, with nothing left out."""
    headings = (
        *("workload", "T", "conc.", "arm", "states x samples", "hit", "excl.", "tok/s", "p50", "speed-up"),
        *("median", "all", "wall", "vs stock", "of ideal", "= off", "distinct", "entropy"),
    )
    cells = (
        (
            *(
                row.workload + (" +grammar" if row.grammar else ""),
                f"{row.temperature:g}",
                str(row.concurrency),
            ),
            *(row.arm, f"{row.states} x {row.samples}", number(row.hit_ratio, ".1%"), str(row.excluded)),
            *(number(value, ".1f") for value in (row.tps_mean, row.tps_p50)),
            *(
                number(value, ".2f")
                for value in (row.speedup_mean, row.speedup_median, row.all_requests.achieved)
            ),
            *(number(value, ".2f") for value in (row.wall_speedup, row.speedup_vs_stock_mean)),
            *(
                number(row.achieved_over_ideal, ".2f"),
                f"{row.same_as_off:.0%}",
                f"{row.distinct_outputs:.0%}",
            ),
            number(row.entropy_mean, ".2f"),
        )
        for row in rows
    )
    return tables.table("Logits Cache", headings, cells, left=4, sections=3)


def summary_lines(report: Report) -> list[str]:
    """The figures beside the rows, a sentence each."""
    lines: list[str] = []
    if report.memory_bytes_per_token is not None:
        lines.append(f"memory: {report.memory_bytes_per_token:,.0f} bytes per cached token")
    lines += [
        f"replay without an engine, vocabulary {micro.vocabulary:,}, T={micro.temperature:g}: "
        f"{micro.tokens_per_s:,.0f} tokens/s, {micro.bytes_per_token:,.0f} bytes per token"
        for micro in report.replay_micro
    ]
    if report.replay_tokens_per_s_server is not None:
        lines.append(f"replay in the server: {report.replay_tokens_per_s_server:,.0f} tokens/s")
    lines += [
        f"recording, no hits, {Variant(part.draw, part.adapter).label}, concurrency {part.concurrency}: "
        f"{part.recording_tps:.1f} tokens/s per request, "
        f"stock {part.stock_tps:.1f} ({part.against_stock:+.1%} lost), "
        f"off {part.off_tps:.1f} ({part.against_off:+.1%} lost), lookup {part.miss_ms:+.2f} ms"
        for part in report.record_overhead_details
    ]
    lines += [
        f"{each.new_tokens} new tokens behind {each.cached_tokens}, {each.at_once} at once, adapter {each.adapter}: "
        f"{each.hive_ttft_ms:.1f} ms to the first one ({each.hive_in_steps:.1f} steps), "
        f"stock {each.stock_ttft_ms:.1f} ms ({each.stock_in_steps:.1f} steps): {each.speedup:.2f}x"
        for each in report.short_extends
    ]
    for item in report.entropy_crossings:
        where = item.crossing
        entropy = "" if where.entropy is None else f" at {where.entropy:.2f} nats"
        lines.append(f"{item.arm} ({item.population}) {where.speedup:g}x: {where.kind}{entropy}")
    lines += [f"{what} left out: {reason}" for what, reason in report.left_out.items()]
    return lines
