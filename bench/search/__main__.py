"""``python -m bench.search``: supervisors on three programs, and AB-MCTS beside TreeQuest.

All models are functions, so it needs no server. The second table has TreeQuest's rows if that is installed
(``uv pip install treequest``).
"""

from __future__ import annotations

import argparse
import importlib.util
from typing import get_args

from rich.console import Console
from rich.table import Table

from bench.harness.command import positive
from bench.search import anchor, programs


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser("python -m bench.search", description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", type=positive, default=100, help="of each program (100)")
    parser.add_argument(
        "--searches", type=positive, default=1000, help="of each row of the second table (1000)"
    )
    options = parser.parse_args()
    console = Console(width=120)
    table = Table("supervisor", "ladders", "Game of 24", "couplets")
    for name, (ladders, games, couplets) in programs.measure(options.problems).items():
        table.add_row(name, f"{ladders:.0%}", f"{games:.0%}", f"{couplets:.2f}")
    console.print(table)
    table = Table("problem", "posterior", "library", "best score", "width", "depth", "last action")
    libraries = [library for library in anchor.LIBRARIES if importlib.util.find_spec(library)]
    for problem in anchor.PROBLEMS:
        for posterior in get_args(anchor.Posterior):
            for library in libraries:
                means = anchor.measure(library, problem, posterior, options.searches)
                table.add_row(problem, posterior, library, *map(str, means.values()))
    console.print(table)
    if "treequest" not in libraries:
        console.print("TreeQuest is not installed: uv pip install treequest")


if __name__ == "__main__":
    main()
