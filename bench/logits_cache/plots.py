"""The pictures of a report, as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bench.logits_cache.arms import ARM_NAMES, REPLAYING
from bench.logits_cache.report import PAPER_SPEEDUPS, POPULATIONS, Row, entropy_points

COLOURS = dict(
    zip(ARM_NAMES, ("#7f7f7f", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#d62728"), strict=True)
)

Value = Callable[[Row], float | None]


def write_plots(rows: Sequence[Row], folder: Path, stem: str) -> list[Path]:
    """Draw everything that the rows allow; returns the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, tuple[str, Value, float | None]] = {
        "speedup": (
            "speed-up of all requests together",
            lambda row: row.all_requests.achieved,
            1.0,
        ),
        "hit_ratio": ("hit ratio", lambda row: row.hit_ratio, None),
        "achieved_over_ideal": ("achieved / ideal speed-up", lambda row: row.achieved_over_ideal, 1.0),
    }
    written: list[Path] = []
    by_temperature = [row for row in rows if row.workload != "sharpened"]
    for name, (label, value, line) in figures.items():
        if by_temperature:
            path = folder / f"{stem}-{name}.png"
            _draw_by_temperature(by_temperature, label, value, line, path)
            written.append(path)
    if any(entropy_points(rows, arm, "all_requests") for arm in REPLAYING):
        path = folder / f"{stem}-entropy.png"
        _draw_by_entropy(rows, path)
        written.append(path)
    return written


def _draw_by_temperature(
    rows: Sequence[Row], label: str, value: Value, line: float | None, path: Path
) -> None:
    """One panel per workload and concurrency, one bar per temperature and arm."""
    panels = list(dict.fromkeys((row.workload, row.grammar, row.concurrency) for row in rows))
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False, sharey=True)
    for axis, panel in zip(axes[0], panels, strict=True):
        inside = [row for row in rows if (row.workload, row.grammar, row.concurrency) == panel]
        workload, grammar, concurrency = panel
        axis.set_title(f"{workload}{' +grammar' if grammar else ''}, concurrency {concurrency}", fontsize=10)
        _bars(axis, inside, value)
        if line is not None:
            axis.axhline(line, color="black", linewidth=0.8, linestyle=":")
        axis.set_xlabel("temperature")
    axes[0][0].set_ylabel(label)
    axes[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _bars(axis: Axes, rows: Sequence[Row], value: Value) -> None:
    temperatures = sorted({row.temperature for row in rows})
    arms = [arm for arm in ARM_NAMES if any(row.arm == arm for row in rows)]
    width = 0.8 / len(arms)
    for index, arm in enumerate(arms):
        heights = {row.temperature: value(row) for row in rows if row.arm == arm}
        places = [place - 0.4 + (index + 0.5) * width for place in range(len(temperatures))]
        known = [
            (place, height)
            for place, temperature in zip(places, temperatures, strict=True)
            if (height := heights.get(temperature)) is not None
        ]
        axis.bar([x for x, _ in known], [y for _, y in known], width, label=arm, color=COLOURS[arm])
    axis.set_xticks(range(len(temperatures)), [f"{temperature:g}" for temperature in temperatures])


def _draw_by_entropy(rows: Sequence[Row], path: Path) -> None:
    """Speed-up against entropy, with the paper's speed-ups as lines."""
    figure, axis = plt.subplots(figsize=(6, 4))
    for arm in REPLAYING:
        for population, style in zip(POPULATIONS, ("--", "-"), strict=True):
            points = entropy_points(rows, arm, population)
            if points:
                label = f"{arm}, {population.replace('_', ' ')}"
                axis.plot(
                    [x for x, _ in points],
                    [y for _, y in points],
                    style,
                    marker="o",
                    color=COLOURS[arm],
                    label=label,
                )
    for speedup in PAPER_SPEEDUPS:
        axis.axhline(speedup, color="black", linewidth=0.8, linestyle=":")
    axis.set_yscale("log")
    for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axis.set_xlabel("mean entropy of the next token's distribution (nats)")
    axis.set_ylabel("speed-up over replay off")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
