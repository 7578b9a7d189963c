"""The pictures of a report, as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.eviction.policies import CLAIRVOYANT, POLICIES
from bench.eviction.report import Row, ScoreTrace

_STYLES = dict(
    zip(
        (*POLICIES, CLAIRVOYANT),
        ("#7f7f7f", "#bcbd22", "#17becf", "#ff7f0e", "#1f77b4", "#9467bd", "#d62728", "black"),
        strict=True,
    )
)


def write_plots(rows: Sequence[Row], scores: Sequence[ScoreTrace], folder: Path, stem: str) -> list[Path]:
    """Draw everything that there is; returns the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if rows:
        written.append(folder / f"{stem}-hits.png")
        _draw_hits(rows, written[-1])
    if scores:
        written.append(folder / f"{stem}-scores.png")
        _draw_scores(scores, written[-1])
    return written


def _draw_hits(rows: Sequence[Row], path: Path) -> None:
    """A panel for each scenario: hit rate against the size of the pool, a line for each policy."""
    names = list(dict.fromkeys(row.scenario for row in rows))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4.2 * columns, 3.2 * lines), squeeze=False)
    for name, axis in zip(names, axes.flat, strict=False):
        inside = [row for row in rows if row.scenario == name]
        for policy, colour in _STYLES.items():
            points = [(row.pool / 1000, row.hit) for row in inside if row.policy == policy]
            if points:
                style = "--" if policy == CLAIRVOYANT else "-"
                axis.plot(
                    [pool for pool, _ in points],
                    [hit for _, hit in points],
                    style,
                    marker="o",
                    markersize=4,
                    color=colour,
                    label=policy,
                )
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("pool (thousand tokens)")
        axis.set_ylabel("prompt tokens found")
    for axis in list(axes.flat)[len(names) :]:
        axis.remove()
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(handles, labels, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def _draw_scores(traces: Sequence[ScoreTrace], path: Path) -> None:
    """A panel for each scenario: the contribution of each agent, round by round."""
    columns = min(3, len(traces))
    lines = -(-len(traces) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4.2 * columns, 3.2 * lines), squeeze=False)
    agents = sorted({agent for trace in traces for agent in trace.scores})
    for trace, axis in zip(traces, axes.flat, strict=False):
        for number, agent in enumerate(agents):
            if agent in trace.scores:
                axis.plot(trace.rounds, trace.scores[agent], marker=".", color=f"C{number}", label=agent)
        axis.set_title(f"{trace.scenario}, pool of {trace.pool:,}", fontsize=10)
        axis.set_xlabel(f"round ({trace.round_requests} requests)")
        axis.set_ylabel("contribution score")
        axis.set_ylim(-0.02, 1.02)
        axis.legend(fontsize=7)
    for axis in list(axes.flat)[len(traces) :]:
        axis.remove()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
