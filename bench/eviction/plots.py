"""The pictures of a report, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.eviction.policies import CLAIRVOYANT, POLICIES
from bench.eviction.report import BASELINE, Row, ScoreTrace
from bench.eviction.scenarios import SCENARIOS

_COLOURS = dict(
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
    replays = [row for row in rows if row.source == "trace"]
    curves = _curves(replays)
    if curves:
        written.append(folder / f"{stem}-hits.png")
        _draw_hits(curves, written[-1])
    if any(row.gap_closed is not None for row in replays):
        written.append(folder / f"{stem}-gaps.png")
        _draw_gaps([row for row in replays if not row.swept], written[-1])
    served = [row for row in rows if row.source == "server"]
    if served:
        written.append(folder / f"{stem}-served.png")
        _draw_served(served, written[-1])
    if scores:
        written.append(folder / f"{stem}-scores.png")
        _draw_scores(scores, written[-1])
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


def _draw_hits(curves: Mapping[str, Sequence[Row]], path: Path) -> None:
    """A panel for each traffic: hit rate against the size of the pool, a line for each policy."""
    figure, axes = _panels(len(curves))
    for (name, rows), axis in zip(curves.items(), axes, strict=True):
        for policy, colour in _COLOURS.items():
            points = sorted((row.pool / 1000, row.hit) for row in rows if row.policy == policy)
            if points:
                axis.plot(
                    [pool for pool, _ in points],
                    [hit for _, hit in points],
                    "--" if policy == CLAIRVOYANT else "-",
                    marker="o",
                    markersize=4,
                    color=colour,
                    label=policy,
                )
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("pool (thousand tokens)")
        axis.set_ylabel("prompt tokens found")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=4, loc="outside lower center")
    _save(figure, path)


def _draw_gaps(rows: Sequence[Row], path: Path) -> None:
    """A group of bars for each scenario and pool: how much of the gap each policy closes."""
    places = list(dict.fromkeys((row.scenario, row.pool) for row in rows if row.gap_closed is not None))
    policies = [
        policy
        for policy in _COLOURS
        if policy not in (BASELINE, CLAIRVOYANT) and any(row.policy == policy for row in rows)
    ]
    gaps = {(row.scenario, row.pool, row.policy): row.gap_closed for row in rows}
    figure, axis = plt.subplots(figsize=(2 + 0.7 * len(places), 3.8), layout="constrained")
    width = 0.8 / max(1, len(policies))
    for number, policy in enumerate(policies):
        heights = [gaps.get((*place, policy)) or 0.0 for place in places]
        lefts = [at - 0.4 + (number + 0.5) * width for at in range(len(places))]
        axis.bar(lefts, heights, width, label=policy, color=_COLOURS[policy])
    axis.axhline(0, color="black", linewidth=0.8)
    axis.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axis.set_ylim(-1.05, 1.05)
    axis.set_xticks(range(len(places)), [f"{name}\n{pool / 1000:g}k" for name, pool in places], fontsize=8)
    axis.set_ylabel(f"gap closed, {BASELINE} 0, {CLAIRVOYANT} 1")
    axis.legend(fontsize=7, loc="lower left")
    _save(figure, path)


def _draw_served(rows: Sequence[Row], path: Path) -> None:
    """What real servers computed and evicted: a group of bars for each run, a bar for each policy."""
    runs = list(dict.fromkeys((row.scenario, row.pool, row.rounds) for row in rows))
    policies = [policy for policy in _COLOURS if any(row.policy == policy for row in rows)]
    by_run = {(row.scenario, row.pool, row.rounds, row.policy): row for row in rows}
    figure, axes = _panels(2)
    width = 0.8 / len(policies)
    amounts = {"prompt tokens computed": "prefill_tokens", "tokens evicted": "evicted_tokens"}
    for axis, (label, amount) in zip(axes, amounts.items(), strict=True):
        for number, policy in enumerate(policies):
            some = [(at, by_run[*run, policy]) for at, run in enumerate(runs) if (*run, policy) in by_run]
            axis.bar(
                [at - 0.4 + (number + 0.5) * width for at, _ in some],
                [getattr(row, amount) for _, row in some],
                width,
                label=policy,
                color=_COLOURS[policy],
            )
        axis.set_xticks(
            range(len(runs)),
            [f"{name}\n{pool / 1000:g}k, {rounds} rounds" for name, pool, rounds in runs],
            fontsize=8,
        )
        axis.set_title(label, fontsize=10)
    axes[0].legend(fontsize=8)
    _save(figure, path)


def _draw_scores(traces: Sequence[ScoreTrace], path: Path) -> None:
    """A panel for each scenario: the contribution of each agent, round by round."""
    figure, axes = _panels(len(traces))
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
    _save(figure, path)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels."""
    columns = min(2, count)
    lines = -(-count // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(5.0 * columns, 3.4 * lines), squeeze=False, layout="constrained"
    )
    panels: list[Axes] = list(axes.flat)
    for axis in panels[count:]:
        axis.remove()
    return figure, panels[:count]


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=150)
    plt.close(figure)
