"""What reports add up: shares with their intervals, and what agents used."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hive import Usage

_Z = 1.96


class Share(NamedTuple):
    """What one method of one player solves of its tasks."""

    method: str
    player: str
    share: float
    low: float
    high: float
    """Of the interval of 95% around the share."""


def wilson(solved: int, tasks: int) -> tuple[float, float]:
    """The interval that holds the true rate with 95%, by Wilson's score."""
    if not tasks:
        return 0.0, 1.0
    share, spread = solved / tasks, _Z**2 / tasks
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / tasks + spread / tasks / 4)
    # At either end the interval's bound is the share itself, which rounding must not step over.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def usage_by_agent(bills: Iterable[dict[str, Usage]]) -> dict[str, Usage]:
    """Usages of several runs added up by agent."""
    bills = list(bills)
    names = sorted({name for bill in bills for name in bill})
    return {name: Usage.sum(bill[name] for bill in bills if name in bill) for name in names}
