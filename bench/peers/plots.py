"""The picture of a report, as a PNG file."""

from __future__ import annotations

from pathlib import Path

from bench.harness.plots import panels, save
from bench.peers.arms import ARM_NAMES
from bench.peers.report import Report

_PALETTE = ("#2ca02c", "#98df8a", "#d62728", "#1f77b4", "#9467bd", "#8c564b", "#ff7f0e", "#aec7e8", "#c5b0d5")
COLOURS = dict(zip(ARM_NAMES, _PALETTE, strict=True))
"""Greens are Hive's."""


def write_plot(report: Report, folder: Path, stem: str) -> Path:
    """Tasks per minute, done and solved, and time of a step, a panel for each workload; returns the file written."""
    workloads = list(dict.fromkeys(row.workload for row in report.rows))
    figure, axes = panels(3 * max(1, len(workloads)), (4, 3), max(1, len(workloads)))
    for column, workload in enumerate(workloads):
        rows = [row for row in report.rows if row.workload == workload]
        for axis, label, heights in zip(
            axes[column :: len(workloads)],
            ("tasks per minute", "tasks solved per minute", "median step, ms"),
            (
                [row.tasks_per_minute for row in rows],
                [row.solved_per_minute for row in rows],
                [row.step_p50_ms or 0.0 for row in rows],
            ),
            strict=True,
        ):
            axis.bar([row.arm for row in rows], heights, color=[COLOURS[row.arm] for row in rows])
            axis.tick_params(axis="x", rotation=45)
            axis.set_title(workload, fontsize=10)
            if column == 0:
                axis.set_ylabel(label)
    return save(figure, folder / f"{stem}.png")
