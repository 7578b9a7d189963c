"""What a soak leaves behind: the JSON file, and the table for people.

The run is cut into windows of equal length.  Drift compares the last quarter of the run with the second one; the first
is left out, as caches and allocators fill in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from rich.table import Table

from bench.harness import tables
from bench.harness.command import HowMade
from bench.soak.traffic import Outcome

WINDOWS = 8
"""A multiple of four."""
EXAMPLES = 10


@dataclass(frozen=True)
class Memory:
    """Resident memory of the server's processes together, at a time."""

    at: float
    """By `time.monotonic`."""
    host_bytes: int


class Window(BaseModel):
    from_s: float
    to_s: float
    requests: int
    """That ended in it; a session of two calls is one."""
    errors: int
    p50_s: float | None
    """Of requests that were asked for an output and got all of it."""
    p99_s: float | None
    hit_ratio: float | None
    """Replayed tokens over all tokens of these requests."""
    rss_bytes: float | None
    """Mean."""


class Report(HowMade):
    """The JSON file.

    ``rss_drift`` and ``p99_drift`` (and ``p50_drift``) are (last quarter - second quarter) / second quarter: 0.05 is 5%
    more memory, or a p99 that is 5% longer, with time.  ``hit_ratio_drift`` is the difference of the two ratios.  None
    where a quarter has nothing to compare, as memory has at a server of another machine.
    """

    seconds: float
    """Of traffic, the server's start not included."""
    concurrency: int
    seed: int
    requests: int
    errors: int
    """Answers that were not what they must be: refused or failed ones, and bad requests that were not refused."""
    error_examples: list[str]
    problems: list[str]
    """Errors that the server found in its own accounting afterwards (``POST /hive/check``)."""
    by_kind: dict[str, int]
    rss_drift: float | None
    p50_drift: float | None
    p99_drift: float | None
    hit_ratio_drift: float | None
    windows: list[Window]
    logits_cache: dict[str, float]
    """The server's own counters at the end."""


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest of the values that at least ``share`` of them do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def window_of(
    outcomes: Sequence[Outcome], memory: Sequence[Memory], began: float, start: float, end: float
) -> Window:
    """What happened from ``start`` until before ``end``, both by `time.monotonic`, as is the run's beginning."""
    inside = [outcome for outcome in outcomes if start <= outcome.ended < end]
    seconds = [outcome.seconds for outcome in inside if outcome.timed]
    sizes = [sample.host_bytes for sample in memory if start <= sample.at < end]
    replayed = sum(outcome.tokens_replayed for outcome in inside)
    tokens = replayed + sum(outcome.tokens_generated for outcome in inside)
    return Window(
        from_s=round(start - began, 3),
        to_s=round(end - began, 3),
        requests=len(inside),
        errors=sum(outcome.error is not None for outcome in inside),
        p50_s=quantile(seconds, 0.5),
        p99_s=quantile(seconds, 0.99),
        hit_ratio=replayed / tokens if tokens else None,
        rss_bytes=sum(sizes) / len(sizes) if sizes else None,
    )


def drifts(
    outcomes: Sequence[Outcome], memory: Sequence[Memory], began: float, ended: float
) -> dict[str, float | None]:
    """The last quarter of a run against its second one: the fields of `Report` whose names end in drift."""
    quarter = (ended - began) / 4
    second = window_of(outcomes, memory, began, began + quarter, began + 2 * quarter)
    last = window_of(outcomes, memory, began, began + 3 * quarter, math.inf)

    def relative(field: Callable[[Window], float | None]) -> float | None:
        one, other = field(second), field(last)
        return None if not one or other is None else (other - one) / one

    ratios = second.hit_ratio, last.hit_ratio
    return {
        "rss_drift": relative(lambda window: window.rss_bytes),
        "p50_drift": relative(lambda window: window.p50_s),
        "p99_drift": relative(lambda window: window.p99_s),
        "hit_ratio_drift": None if ratios[0] is None or ratios[1] is None else ratios[1] - ratios[0],
    }


def windows(
    outcomes: Sequence[Outcome], memory: Sequence[Memory], began: float, ended: float
) -> list[Window]:
    """The run in parts; what ended after the last moment belongs to the last part."""
    step = (ended - began) / WINDOWS
    parts = [
        window_of(outcomes, memory, began, began + part * step, began + (part + 1) * step)
        for part in range(WINDOWS - 1)
    ]
    last = window_of(outcomes, memory, began, began + (WINDOWS - 1) * step, math.inf)
    return [*parts, last.model_copy(update={"to_s": round(ended - began, 3)})]


def counted(outcomes: Sequence[Outcome]) -> tuple[dict[str, int], list[str]]:
    """Requests by kind, and the first errors."""
    kinds = Counter(outcome.kind for outcome in outcomes)
    return dict(sorted(kinds.items())), [o.error for o in outcomes if o.error is not None][:EXAMPLES]


def table(report: Report) -> Table:
    """The windows, and the drifts below."""
    headings = ("seconds", "requests", "errors", "p50", "p99", "hit ratio", "memory")
    cells = [
        (
            *(f"{window.from_s:.0f} to {window.to_s:.0f}", str(window.requests), str(window.errors)),
            *(_shown(value, "{:.2f} s") for value in (window.p50_s, window.p99_s)),
            _shown(window.hit_ratio, "{:.2f}"),
            _shown(None if window.rss_bytes is None else window.rss_bytes / 2**20, "{:.0f} MiB"),
        )
        for window in report.windows
    ]
    drift = (
        *("drift", str(report.requests), str(report.errors)),
        *(_shown(value, "{:+.1%}") for value in (report.p50_drift, report.p99_drift)),
        *(_shown(report.hit_ratio_drift, "{:+.2f}"), _shown(report.rss_drift, "{:+.2%}")),
    )
    return tables.table("Soak", headings, [*cells, drift], bold="drift")


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
