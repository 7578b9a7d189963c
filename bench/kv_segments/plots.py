"""The pictures of a report, as PNG files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.harness.plots import bars, panels, save
from bench.kv_segments.arms import ARM_NAMES
from bench.kv_segments.quality import CONTEXTS
from bench.kv_segments.report import PAPER_TTFT, Report, Row

COLOURS: dict[str, str] = dict(
    zip(ARM_NAMES, ("#2ca02c", "#1f77b4", "#7f7f7f", "#ff7f0e", "#d62728"), strict=True)
)
MARKS: dict[str | None, str] = dict(zip(CONTEXTS, ("o", "s", "^"), strict=True))
PALETTE = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b")


def write_plots(report: Report, folder: Path, stem: str) -> list[Path]:
    """Draw everything that the rows allow; returns the files written."""
    written: list[Path] = []
    speed = [row for row in report.rows if row.ttft_ratio is not None]
    if speed:
        written.append(_draw_speed(speed, folder / f"{stem}-speed.png"))
    quality = [row for row in report.rows if row.arm == "segments"]
    if quality:
        written.append(_draw_quality(quality, folder / f"{stem}-quality.png"))
    return written


def _draw_speed(rows: list[Row], path: Path) -> Path:
    """Times to the first token and of the whole, as ratios, a group of bars for each workload."""
    workloads = list(dict.fromkeys(row.workload for row in rows))
    labels = {_label(row): row for row in rows}
    figure, axes = panels(2, (5, 4))
    figures: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
        ("baseline's time to the first token over this arm's", lambda row: row.ttft_ratio),
        ("baseline's time of the workflow over this arm's", lambda row: row.e2e_ratio),
    )
    for axis, (label, value) in zip(axes, figures, strict=True):
        heights: dict[str, dict[str, float | None]] = {
            name: {row.workload: value(row) or 0.0 for row in rows if _label(row) == name} for name in labels
        }
        colours = {name: COLOURS[row.arm] for name, row in labels.items()}
        hatched = [name for name, row in labels.items() if name != row.arm]
        for container in bars(axis, workloads, heights, colours, hatched):
            axis.bar_label(container, fmt="%.2f", fontsize=7)
        axis.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        axis.set_ylabel(label, fontsize=8)
    for workload, ratio in PAPER_TTFT.items():
        if workload in workloads:
            place = workloads.index(workload)
            axes[0].hlines(ratio, place - 0.4, place + 0.4, color="black", linewidth=1.2)
    axes[0].legend(fontsize=8)
    axes[0].set_title("lines: the paper's ratios", fontsize=8)
    return save(figure, path)


def _label(row: Row) -> str:
    return row.arm if row.corrector in (None, "none") else f"{row.arm}, {row.corrector}"


def _draw_quality(rows: list[Row], path: Path) -> Path:
    """KL against the share computed again: a mark for each context, a colour for each corrector."""
    correctors = list(dict.fromkeys(row.corrector for row in rows))
    colours = dict(zip(correctors, PALETTE, strict=False))
    figure, (axis,) = panels(1, (6, 4))
    # Those that compute everything again are exact: on this scale they would be all that one sees.
    for row in rows:
        if row.kl_mean is None or row.tokens_recomputed is None or row.tokens_recomputed > 0.9:
            continue
        axis.scatter(
            100 * row.tokens_recomputed,
            row.kl_mean,
            marker=MARKS[row.context],
            color=colours[row.corrector],
            label=f"{row.context}, {row.corrector}",
        )
    axis.set_ylim(bottom=0)
    axis.set_xlabel("placed tokens computed again, %")
    axis.set_ylabel("mean KL to the exact path, nats")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save(figure, path)
