"""Pictures as PNG files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from bench.harness.statistics import Share

_COLOURS = ("#2ca02c", "#1f77b4", "#7f7f7f", "#ff7f0e", "#9467bd")


def save(figure: Figure, path: Path) -> Path:
    """Write a picture and forget it; returns the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def panels(count: int, size: tuple[float, float] = (5.0, 3.4), columns: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels of a size, in so many columns at the most."""
    columns = min(columns, count)
    lines = -(-count // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(size[0] * columns, size[1] * lines), squeeze=False, layout="constrained"
    )
    found: list[Axes] = list(axes.flat)
    for axis in found[count:]:
        axis.remove()
    return figure, found[:count]


def bars(
    axis: Axes,
    groups: Sequence[str],
    heights: Mapping[str, Mapping[str, float | None]],
    colours: Mapping[str, str],
    hatched: Iterable[str] = (),
    errors: Mapping[str, tuple[list[float], list[float]]] | None = None,
) -> list[BarContainer]:
    """A group of bars for each of `groups`, in it a bar for each series that has a height there."""
    width = 0.8 / max(1, len(heights))
    drawn = []
    for number, (name, series) in enumerate(heights.items()):
        known = [(at, height) for at, group in enumerate(groups) if (height := series.get(group)) is not None]
        drawn.append(
            axis.bar(
                [at - 0.4 + (number + 0.5) * width for at, _ in known],
                [height for _, height in known],
                width,
                label=name,
                color=colours[name],
                hatch="//" if name in hatched else None,
                yerr=errors[name] if errors else None,
                capsize=2,
            )
        )
    axis.set_xticks(range(len(groups)), list(groups))
    return drawn


def write_plot(shares: Sequence[Share], title: str, path: Path) -> Path:
    """Who solves how much: a group for each method, a bar with its interval for each player; returns the file."""
    methods = list(dict.fromkeys(one.method for one in shares))
    players = list(dict.fromkeys(one.player for one in shares))
    figure, axis = plt.subplots(figsize=(3 + 1.4 * len(methods), 3.8), layout="constrained")
    by_player = {player: [one for one in shares if one.player == player] for player in players}
    bars(
        axis,
        methods,
        {player: {one.method: one.share for one in some} for player, some in by_player.items()},
        {player: _COLOURS[number % len(_COLOURS)] for number, player in enumerate(players)},
        errors={
            player: (
                [max(0.0, one.share - one.low) for one in some],
                [max(0.0, one.high - one.share) for one in some],
            )
            for player, some in by_player.items()
        },
    )
    axis.set_ylim(0, 1)
    axis.set_ylabel("share solved, with 95% intervals")
    axis.set_title(title, fontsize=10)
    figure.legend(fontsize=8, ncols=len(players), loc="outside lower center")
    return save(figure, path)
