"""The pictures of a report, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from bench.eviction.policies import CLAIRVOYANT, POLICIES
from bench.eviction.report import BASELINE, Row, ScoreTrace
from bench.eviction.scenarios import SCENARIOS
from bench.harness.plots import bars, panels, save

_COLOURS = dict(
    zip(
        (*POLICIES, CLAIRVOYANT),
        (*["C7", "C8", "C9", "C1", "C0", "C4", "C3", "C2", "C5", "C6"][: len(POLICIES)], "black"),
        strict=True,
    )
)


def write_plots(rows: Sequence[Row], scores: Sequence[ScoreTrace], folder: Path, stem: str) -> list[Path]:
    """Draw everything that there is; returns the files written."""
    written: list[Path] = []
    replays = [row for row in rows if row.source == "trace"]
    if curves := _curves(replays):
        written.append(_draw_hits(curves, folder / f"{stem}-hits.png"))
    if any(row.gap_closed is not None for row in replays):
        written.append(_draw_gaps([row for row in replays if not row.swept], folder / f"{stem}-gaps.png"))
    if served := [row for row in rows if row.source == "server"]:
        written.append(_draw_served(served, folder / f"{stem}-served.png"))
    if scores:
        written.append(_draw_scores(scores, folder / f"{stem}-scores.png"))
    return written


def _curves(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by traffic, which some scenarios have in common, where there is more than one pool."""
    curves: dict[str, list[Row]] = {}
    for row in rows:
        names = [row.scenario]
        if row.scenario in SCENARIOS:
            traffic = SCENARIOS[row.scenario].traffic
            names = [scenario.name for scenario in SCENARIOS.values() if scenario.traffic == traffic]
        curves.setdefault(names[0], []).append(row)
    return {name: curve for name, curve in curves.items() if len({row.pool for row in curve}) > 1}


def _draw_hits(curves: Mapping[str, Sequence[Row]], path: Path) -> Path:
    """A panel for each traffic: hit rate against the size of the pool, a line for each policy."""
    figure, axes = panels(len(curves))
    for (name, rows), axis in zip(curves.items(), axes, strict=True):
        for policy, colour in _COLOURS.items():
            points = sorted((row.pool / 1000, row.hit) for row in rows if row.policy == policy)
            if points:
                style = "--" if policy == CLAIRVOYANT else "-"
                columns = zip(*points, strict=True)
                axis.plot(*columns, style, marker="o", markersize=4, color=colour, label=policy)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("pool (thousand tokens)")
        axis.set_ylabel("prompt tokens found")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=4, loc="outside lower center")
    return save(figure, path)


def _draw_gaps(rows: Sequence[Row], path: Path) -> Path:
    """A group of bars for each scenario and pool: how much of the gap each policy closes."""
    places = list(dict.fromkeys(_place(row) for row in rows if row.gap_closed is not None))
    gaps: dict[str, dict[str, float | None]] = {
        policy: {_place(row): row.gap_closed or 0.0 for row in rows if row.policy == policy}
        for policy in _COLOURS
        if policy not in (BASELINE, CLAIRVOYANT) and any(row.policy == policy for row in rows)
    }
    figure, axis = plt.subplots(figsize=(2 + 0.7 * len(places), 3.8), layout="constrained")
    bars(axis, places, gaps, _COLOURS)
    axis.tick_params(axis="x", labelsize=8)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axis.set_ylim(-1.05, 1.05)
    axis.set_ylabel(f"gap closed, {BASELINE} 0, {CLAIRVOYANT} 1")
    axis.legend(fontsize=7, loc="lower left")
    return save(figure, path)


def _draw_served(rows: Sequence[Row], path: Path) -> Path:
    """What real servers computed and evicted: a group of bars for each run, a bar for each policy."""
    policies = [policy for policy in _COLOURS if any(row.policy == policy for row in rows)]
    figure, axes = panels(2)
    amounts = {"prompt tokens computed": "prefill_tokens", "tokens evicted": "evicted_tokens"}
    for axis, (label, amount) in zip(axes, amounts.items(), strict=True):
        heights = {
            policy: {_place(row): getattr(row, amount) for row in rows if row.policy == policy}
            for policy in policies
        }
        bars(axis, list(dict.fromkeys(map(_place, rows))), heights, _COLOURS)
        axis.tick_params(axis="x", labelsize=8)
        axis.set_title(label, fontsize=10)
    axes[0].legend(fontsize=8)
    return save(figure, path)


def _place(row: Row) -> str:
    rounds = "" if row.rounds is None else f", {row.rounds} rounds"
    return f"{row.scenario}\n{row.pool / 1000:g}k{rounds}"


def _draw_scores(traces: Sequence[ScoreTrace], path: Path) -> Path:
    """A panel for each scenario: the contribution of each agent, round by round."""
    figure, axes = panels(len(traces))
    agents = sorted({agent for trace in traces for agent in trace.scores})
    for trace, axis in zip(traces, axes, strict=True):
        for number, agent in enumerate(agents):
            if agent in trace.scores:
                axis.plot(trace.rounds, trace.scores[agent], marker=".", color=f"C{number}", label=agent)
        axis.set_title(f"{trace.scenario}, pool of {trace.pool:,}", fontsize=10)
        axis.set_xlabel(f"round ({trace.round_requests} requests)")
        axis.set_ylabel("contribution score")
        axis.set_ylim(-0.02, 1.02)
        axis.legend(fontsize=7)
    return save(figure, path)
