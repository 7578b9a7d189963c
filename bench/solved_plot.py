"""A picture of who solves how much, as a PNG file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.tally import Share

_COLOURS = ("#2ca02c", "#1f77b4", "#7f7f7f", "#ff7f0e", "#9467bd")


def write_plot(shares: Sequence[Share], title: str, path: Path) -> Path:
    """A group for each method, a bar with its interval for each player; returns the file written."""
    methods = list(dict.fromkeys(one.method for one in shares))
    players = list(dict.fromkeys(one.player for one in shares))
    figure, axis = plt.subplots(figsize=(3 + 1.4 * len(methods), 3.8), layout="constrained")
    width = 0.8 / len(players)
    for number, player in enumerate(players):
        some = [one for one in shares if one.player == player]
        axis.bar(
            [methods.index(one.method) - 0.4 + (number + 0.5) * width for one in some],
            [one.share for one in some],
            width,
            yerr=(
                [max(0.0, one.share - one.low) for one in some],
                [max(0.0, one.high - one.share) for one in some],
            ),
            color=_COLOURS[number % len(_COLOURS)],
            capsize=2,
            label=player,
        )
    axis.set_xticks(range(len(methods)), methods)
    axis.set_ylim(0, 1)
    axis.set_ylabel("share solved, with 95% intervals")
    axis.set_title(title, fontsize=10)
    figure.legend(fontsize=8, ncols=len(players), loc="outside lower center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
