"""Shares and ratios with their intervals, means and medians of what is known."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from hive_frontend.evaluation.estimates import share
from pydantic import BaseModel

from hive import Case, Estimate, Evaluation

RESAMPLES = 2000
"""Of a bootstrap."""

T = TypeVar("T")


class Share(NamedTuple):
    """What one method of one player solves of its tasks."""

    method: str
    player: str
    share: float
    low: float
    high: float
    """Of the interval of 95% around the share."""


class Interval(BaseModel):
    """The middle 95% of what a figure could have been with other tasks, by bootstrap."""

    low: float
    high: float


def share_of(evaluation: Evaluation, score: str) -> Estimate:
    """The share of true scores; of no cases, 0 with the whole interval."""
    return evaluation.scores.get(score) or share([])


def total(cases: Iterable[Case], score: str) -> int:
    """The sum of a score over cases."""
    return int(sum(case.scores[score] for case in cases))


def interval(
    values: Sequence[float], statistic: Callable[[np.ndarray], np.ndarray] | None = None, seed: int = 0
) -> Interval | None:
    """Bootstrap of a statistic over the last axis, the median by default; None with less than two values."""
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(seed).choice(np.asarray(values), (RESAMPLES, len(values)))
    found = np.median(drawn, axis=-1) if statistic is None else statistic(drawn)
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(low=float(low), high=float(high))


def interval_over_blocks(
    blocks: Sequence[int], value_of: Callable[[Sequence[int]], float | None], seed: int = 0
) -> tuple[float, float] | None:
    """Bootstrap over blocks: what a figure could have been with other blocks, with 95%.

    Draws without a value are left out; None with less than two blocks, or if more than half of the draws have none.
    """
    if len(blocks) < 2:
        return None
    drawn = np.random.default_rng(seed).choice(blocks, (RESAMPLES, len(blocks))).tolist()
    values = [value for some in drawn if (value := value_of(some)) is not None]
    if len(values) < RESAMPLES / 2:
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def of_known(function: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    """A mean, median, maximum ... of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    return function(known) if known else None


def mean(values: Iterable[float | None]) -> float | None:
    return of_known(statistics.fmean, values)


def median(values: Iterable[float | None]) -> float | None:
    return of_known(statistics.median, values)


def ratio(part: float, whole: float) -> float | None:
    """None of nothing."""
    return part / whole if whole else None


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """The items in the order of a turn, so that none always has the same place."""
    first = turn % len(items) if items else 0
    return [*items[first:], *items[:first]]
