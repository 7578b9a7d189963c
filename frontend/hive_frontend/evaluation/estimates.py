"""Estimates with 95% intervals: of shares, of means, and of differences between two programs on the same items.

Repetitions of an item are not independent: an item that is hard once is hard again. So intervals are about items, not
about cases.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, variance

from pydantic import BaseModel

_Z = 1.96
_RESAMPLES = 2000


class Estimate(BaseModel):
    """A share or a mean over items, or a difference of two, with its 95% interval."""

    value: float
    low: float | None
    """None if there are too few items for an interval."""
    high: float | None
    items: int
    is_share: bool
    is_difference: bool = False

    def __str__(self) -> str:
        value, *ends = (self._shown(each) for each in (self.value, self.low, self.high) if each is not None)
        return f"{value} ({' to '.join(ends)})" if ends else value

    def _shown(self, number: float) -> str:
        sign = "+" if self.is_difference else ""
        return f"{number:{sign}.1%}" if self.is_share else f"{number:{sign}.4g}"


def share(items: Sequence[Sequence[float]]) -> Estimate:
    """Return the share of true outcomes, by Wilson's score; `items` has the outcomes of each item, one or more.

    With repetitions, the sample size is the effective one: the number of independent cases that would give the
    observed variance between items. It is between the numbers of items and of cases.
    """
    if not items:
        return Estimate(value=0.0, low=0.0, high=1.0, items=0, is_share=True)
    means = [fmean(outcomes) for outcomes in items]
    value, count = fmean(means), float(len(means))
    if 0 < value < 1 and len(means) > 1:
        between = variance(means) / len(means)
        cases = sum(map(len, items))
        count = min(cases, max(count, value * (1 - value) / between)) if between else cases
    spread = _Z**2 / count
    middle = (value + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(value * (1 - value) / count + spread / count / 4)
    # At 0 and 1 the value is an end of its interval, and rounding must not exclude it.
    low, high = min(value, max(0.0, middle - half)), max(value, min(1.0, middle + half))
    return Estimate(value=value, low=low, high=high, items=len(items), is_share=True)


def mean(items: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean, by bootstrap over items; `items` has the numbers of each item, one or more."""
    return _bootstrapped([fmean(numbers) for numbers in items], is_difference=False)


def mean_difference(differences: Sequence[float]) -> Estimate:
    """Return the mean of the differences of items, by bootstrap."""
    return _bootstrapped(differences, is_difference=True)


def share_difference(differences: Sequence[float]) -> Estimate:
    """Return the mean difference of two shares on the same items, by the interval of Agresti and Min.

    It adds one item on which both agree and one on which they differ. Otherwise a few items on which both always agree
    would seem to prove that there is no difference.
    """
    count, total = len(differences) + 2, math.fsum(differences)
    middle = total / count
    spread = math.sqrt(math.fsum(each * each for each in differences) + 1 - total * middle) / count
    return Estimate(
        value=fmean(differences) if differences else 0.0,
        low=max(-1.0, middle - _Z * spread) if differences else -1.0,
        high=min(1.0, middle + _Z * spread) if differences else 1.0,
        items=len(differences),
        is_share=True,
        is_difference=True,
    )


def _bootstrapped(values: Sequence[float], *, is_difference: bool) -> Estimate:
    count = len(values)
    value = fmean(values) if values else math.nan
    low = high = None
    if count > 1:
        rng = random.Random(0)
        drawn = sorted(fmean(rng.choices(values, k=count)) - value for _ in range(_RESAMPLES))
        # A resample varies less than a new sample would, and few items tell their variance badly: the factors are those
        # between the normal distribution and Student's.
        wider = math.sqrt(count / (count - 1)) * (1 + 1.21 / (count - 1))
        low, high = (value + wider * drawn[int(_RESAMPLES * part)] for part in (0.025, 0.975))
    return Estimate(value=value, low=low, high=high, items=count, is_share=False, is_difference=is_difference)
