"""The pictures of a report, as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.ticker import FuncFormatter

from bench.harness.plots import bars, panels, save
from bench.logits_cache.arms import ARM_NAMES, REPLAYING
from bench.logits_cache.report import PAPER_SPEEDUPS, POPULATIONS, Row, entropy_points

COLOURS: dict[str, str] = dict(
    zip(ARM_NAMES, ("#7f7f7f", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#d62728"), strict=True)
)

Value = Callable[[Row], float | None]


def write_plots(rows: Sequence[Row], folder: Path, stem: str) -> list[Path]:
    """Draw everything that the rows allow; returns the files written."""
    figures: dict[str, tuple[str, Value, float | None]] = {
        "speedup": ("speed-up of all requests together", lambda row: row.all_requests.achieved, 1.0),
        "hit_ratio": ("hit ratio", lambda row: row.hit_ratio, None),
        "achieved_over_ideal": ("achieved / ideal speed-up", lambda row: row.achieved_over_ideal, 1.0),
    }
    by_temperature = [row for row in rows if row.workload != "sharpened"]
    written = [
        _draw_by_temperature(by_temperature, label, value, line, folder / f"{stem}-{name}.png")
        for name, (label, value, line) in figures.items()
        if by_temperature
    ]
    if any(entropy_points(rows, arm, "all_requests") for arm in REPLAYING):
        written.append(_draw_by_entropy(rows, folder / f"{stem}-entropy.png"))
    return written


def _draw_by_temperature(
    rows: Sequence[Row], label: str, value: Value, line: float | None, path: Path
) -> Path:
    """One panel per workload and concurrency, one bar per temperature and arm."""
    blocks = list(dict.fromkeys((row.workload, row.grammar, row.concurrency) for row in rows))
    figure, axes = panels(len(blocks), (4.2, 3.6), len(blocks))
    for axis, block in zip(axes, blocks, strict=True):
        inside = [row for row in rows if (row.workload, row.grammar, row.concurrency) == block]
        workload, grammar, concurrency = block
        axis.set_title(f"{workload}{' +grammar' if grammar else ''}, concurrency {concurrency}", fontsize=10)
        heights: dict[str, dict[str, float | None]] = {
            arm: {f"{row.temperature:g}": value(row) for row in inside if row.arm == arm}
            for arm in ARM_NAMES
            if any(row.arm == arm for row in inside)
        }
        bars(axis, [f"{each:g}" for each in sorted({row.temperature for row in inside})], heights, COLOURS)
        if line is not None:
            axis.axhline(line, color="black", linewidth=0.8, linestyle=":")
        axis.set_xlabel("temperature")
        axis.sharey(axes[0])
    axes[0].set_ylabel(label)
    axes[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save(figure, path)


def _draw_by_entropy(rows: Sequence[Row], path: Path) -> Path:
    """Speed-up against entropy, with the paper's speed-ups as lines."""
    figure, (axis,) = panels(1, (6, 4))
    for arm in REPLAYING:
        for population, style in zip(POPULATIONS, ("--", "-"), strict=True):
            points = entropy_points(rows, arm, population)
            if points:
                label = f"{arm}, {population.replace('_', ' ')}"
                axis.plot(*zip(*points, strict=True), style, marker="o", color=COLOURS[arm], label=label)
    for speedup in PAPER_SPEEDUPS:
        axis.axhline(speedup, color="black", linewidth=0.8, linestyle=":")
    axis.set_yscale("log")
    for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axis.set_xlabel("mean entropy of the next token's distribution (nats)")
    axis.set_ylabel("speed-up over replay off")
    axis.legend(fontsize=8)
    return save(figure, path)
