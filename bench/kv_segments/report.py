"""What a run leaves behind: the JSON file and the tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel
from rich.table import Table

from bench.harness.command import HowMade
from bench.harness.statistics import Interval, interval, ratio
from bench.harness.tables import number, table
from bench.kv_segments.accounting import KV
from bench.kv_segments.arms import ARM_NAMES, ArmName
from bench.kv_segments.quality import FORCED, ContextName, QualityArm, Reading, Setup
from bench.kv_segments.speed import WORKLOADS, Amounts, Turn, WorkloadName
from bench.kv_segments.timing import (
    by_problem,
    kv_total,
    ratios,
    ttft_by_call_ms,
    ttft_s,
    ttft_with_prefill_s,
)

PAPER_TTFT: dict[WorkloadName, float] = {"iterative": 2.0, "tot": 3.5, "parallel": 6.2}
"""``ttft_ratio`` in table 5 of the paper."""


class Row(BaseModel):
    """One arm in one workload. What does not apply is None."""

    workload: WorkloadName | Literal["town_meeting"]
    arm: ArmName | QualityArm
    corrector: str | None
    """Of arms with segments."""
    context: ContextName | None
    """In which segments were encoded; a choreographed message's is where it was made."""
    ttft_ratio: float | None = None
    """Time to the first token of the baseline over this arm's, the median over the problems."""
    e2e_ratio: float | None = None
    """The same of the whole workflow's time."""
    reuse_rate: float | None = None
    """Tokens placed from segments over all of the contexts'."""
    tokens_recomputed: float | None = None
    """Share of the placed tokens that a corrector computed again."""
    kl_mean: float | None = None
    """Nats, KL(exact || this arm), over all positions of the forced continuations."""
    kl_first: float | None = None
    """The same at the first position alone."""
    top1: float | None = None
    """Share of the positions whose likeliest token is the exact path's."""

    ttft_ratio_interval: Interval | None = None
    e2e_ratio_interval: Interval | None = None
    ttft_with_prefill_ratio: float | None = None
    """As ``ttft_ratio``, with the time of prefill calls shared out among the decode calls: the baseline has none."""
    ttft_with_prefill_ratio_interval: Interval | None = None
    ttft_ms: float | None = None
    """Mean over the decode calls of a workflow, the median over the problems."""
    ttft_with_prefill_ms: float | None = None
    e2e_ms: float | None = None
    ttft_by_call_ms: dict[str, float] | None = None
    """Medians, by the calls' names."""
    problems: int | None = None
    turns: int | None = None
    decode_calls: int | None = None
    """Of all turns."""
    generated: int | None = None
    """Tokens of all turns: alike in all arms."""
    exact_rate: float | None = None
    """Tokens of the contexts that the radix tree had, over all."""
    missing_rate: float | None = None
    """Tokens of the contexts that had to be computed, over all."""
    kl_interval: Interval | None = None
    """Over readers."""
    top1_interval: Interval | None = None
    readers: int | None = None
    positions: int | None = None
    logprob_error: float | None = None
    """Largest difference of two log-probabilities."""
    hidden_error: float | None = None
    """Largest relative error of a reader's final hidden states."""


class SpeedSetting(Amounts, frozen=True):
    """What the arms had in common."""

    tokens: Literal["text", "random"]
    """Texts by the model's tokenizer, or random ids."""
    system_tokens: int | None
    """With random ids: the length of every system prompt."""
    problem_tokens: int | None


class QualitySetting(BaseModel):
    """What the readers had in common."""

    rounds: int
    forced: int = FORCED
    share: float
    """That first-k and blend may compute again."""
    block: int
    """Tokens of a block of block-aligned blend."""
    neutral_prefix: str | None
    """None if the server was not started here."""


class Report(HowMade):
    """The JSON file."""

    model: str
    layers: int | None
    hidden: int | None
    """Of the model, by its configuration."""
    dtype: str | None
    """The data type the server was set to; None for the model's own, or a server that ran already."""
    seed: int
    speed: SpeedSetting | None
    quality: QualitySetting | None
    left_out: dict[str, str]
    """What was not measured, and why."""
    rows: list[Row]


def speed_rows(turns: Sequence[Turn]) -> list[Row]:
    """One for each workload, arm and corrector."""
    places = sorted(
        dict.fromkeys((turn.workload, turn.arm, turn.corrector) for turn in turns),
        key=lambda place: (ARM_NAMES.index(place[1]), place[2] not in (None, "none"), place[2] or ""),
    )
    rows: list[Row] = []
    for workload in WORKLOADS:
        base = [turn for turn in turns if (turn.workload, turn.arm) == (workload, "baseline")]
        for arm, corrector in (place[1:] for place in places if place[0] == workload):
            mine = [
                turn
                for turn in turns
                if (turn.workload, turn.arm, turn.corrector) == (workload, arm, corrector)
            ]
            rows.append(_speed_row(mine, base))
    return rows


def _speed_row(mine: Sequence[Turn], base: Sequence[Turn]) -> Row:
    first = mine[0]
    segments = first.arm == "choreographed"
    kv = kv_total(mine)
    figures: dict[str, Any] = {}
    for name, measure in (
        ("ttft", ttft_s),
        ("e2e", attrgetter("wall_s")),
        ("ttft_with_prefill", ttft_with_prefill_s),
    ):
        values = by_problem(mine, measure)
        each = ratios(by_problem(base, measure), values)
        figures[f"{name}_ratio"] = median(each) if each else None
        # Of the baseline over itself there is nothing to be unsure about.
        figures[f"{name}_ratio_interval"] = interval(each) if first.arm != "baseline" else None
        figures[f"{name}_ms"] = 1e3 * median(values.values())
    decodes = [call for turn in mine for call in turn.calls if call.decode]
    return Row(
        workload=first.workload,
        arm=first.arm,
        corrector=first.corrector,
        context="producer" if segments else None,
        reuse_rate=ratio(kv.placed, kv.context) if segments else None,
        tokens_recomputed=ratio(kv.recomputed, kv.placed + kv.recomputed) if segments else None,
        ttft_by_call_ms=ttft_by_call_ms(mine),
        problems=len({turn.problem for turn in mine}),
        turns=len(mine),
        decode_calls=len(decodes),
        generated=sum(call.generated for call in decodes),
        exact_rate=ratio(kv.exact, kv.context),
        missing_rate=ratio(kv.missing, kv.context),
        **figures,
    )


def quality_rows(readings: Mapping[Setup, Sequence[Reading]]) -> list[Row]:
    return [_quality_row(setup, some) for setup, some in readings.items()]


def _quality_row(setup: Setup, readings: Sequence[Reading]) -> Row:
    kv = sum((reading.kv for reading in readings if reading.kv is not None), KV())
    segments = setup.arm == "segments"
    distances = [reading.distance for reading in readings]
    kl = [value for each in distances for value in each.kl]
    same = [value for each in distances for value in each.same_top]

    def mean(drawn: np.ndarray) -> np.ndarray:
        return np.asarray(drawn.mean(axis=-1))

    return Row(
        workload="town_meeting",
        arm=setup.arm,
        corrector=setup.corrector,
        context=setup.context,
        reuse_rate=ratio(kv.placed, kv.context) if segments else None,
        tokens_recomputed=ratio(kv.recomputed, kv.placed + kv.recomputed) if segments else None,
        kl_mean=fmean(kl),
        kl_first=fmean(each.kl[0] for each in distances),
        top1=fmean(same),
        exact_rate=ratio(kv.exact, kv.context) if segments else None,
        missing_rate=ratio(kv.missing, kv.context) if segments else None,
        kl_interval=interval([fmean(each.kl) for each in distances], mean),
        top1_interval=interval([fmean(each.same_top) for each in distances], mean),
        readers=len(readings),
        positions=len(kl),
        logprob_error=max(each.logprob_error for each in distances),
        hidden_error=max(each.hidden_error for each in distances),
    )


def speed_table(report: Report) -> Table:
    cells = (
        (
            *(row.workload, row.arm, row.corrector or "-"),
            *(number(row.ttft_ms), number(row.ttft_ratio, ".2f"), _between(row.ttft_ratio_interval, ".2f")),
            number(row.ttft_with_prefill_ratio, ".2f"),
            number(None if row.e2e_ms is None else row.e2e_ms / 1e3, ".2f"),
            *(number(row.e2e_ratio, ".3f"), _between(row.e2e_ratio_interval, ".3f")),
            *(number(rate, ".0%") for rate in (row.reuse_rate, row.tokens_recomputed, row.exact_rate)),
        )
        for row in report.rows
        if row.workload != "town_meeting"
    )
    headings = (
        *("workload", "arm", "corrector", "TTFT ms", "ratio", "95%", "with prefill", "e2e s", "ratio", "95%"),
        *("placed", "again", "exact"),
    )
    caption = "ratio: baseline over this arm; placed, exact: of the contexts' tokens; again: of those placed"
    title = f"Choreographed workflows: {report.model}"
    return table(title, headings, cells, left=3, sections=1, caption=caption)


def quality_table(report: Report) -> Table:
    cells = (
        (
            *(row.arm, row.context or "-", row.corrector or "-"),
            *(number(row.reuse_rate, ".0%"), number(row.tokens_recomputed, ".1%")),
            *(number(row.kl_mean, ".4g"), _between(row.kl_interval, ".2g"), number(row.kl_first, ".4g")),
            *(number(row.top1, ".1%"), _between(row.top1_interval, ".1%"), number(row.hidden_error, ".1e")),
        )
        for row in report.rows
        if row.workload == "town_meeting"
    )
    headings = (
        *("arm", "context", "corrector", "placed", "again", "mean KL"),
        *("95%", "first KL", "top 1", "95%", "error"),
    )
    caption = "KL in nats, of the exact path's distributions; error: of final hidden states, relative"
    title = f"Town meeting: {report.model}, {report.dtype or 'its own dtype'}"
    return table(title, headings, cells, left=3, caption=caption)


def _between(between: Interval | None, form: str) -> str:
    return "-" if between is None else f"{between.low:{form}}-{between.high:{form}}"
