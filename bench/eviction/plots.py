"""The picture of a report, as a PNG file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from matplotlib import pyplot as plt

from bench.eviction.policies import CLAIRVOYANT, POLICIES
from bench.eviction.report import BASELINE, Row, SessionRow
from bench.harness.plots import bars, save

_COLOURS = {policy: f"C{number}" for number, policy in enumerate(POLICIES)}


def draw_gaps(rows: Iterable[Row | SessionRow], path: Path) -> list[Path]:
    """A group of bars for each scenario and pool: how much of the gap each policy closes, means over seeds.

    Nothing without a gap.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        scenario = f"{row.scenario}\n" if isinstance(row, Row) else ""
        if row.gap_closed is not None and row.policy in _COLOURS:
            places = found.setdefault(row.policy, {})
            places.setdefault(f"{scenario}{row.pool / 1000:g}k", []).append(row.gap_closed)
    names = list(found.pop(BASELINE, {}))
    if not names:
        return []
    gaps: dict[str, dict[str, float | None]] = {
        policy: {place: statistics.fmean(values) for place, values in places.items()}
        for policy, places in found.items()
    }
    figure, axis = plt.subplots(figsize=(2 + 0.7 * len(names), 3.8), layout="constrained")
    bars(axis, names, gaps, _COLOURS)
    axis.tick_params(axis="x", labelsize=8)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axis.set_ylim(-1.05, 1.05)
    axis.set_ylabel(f"gap closed, {BASELINE} 0, {CLAIRVOYANT} 1")
    axis.legend(fontsize=7, loc="lower left")
    return [save(figure, path)]
