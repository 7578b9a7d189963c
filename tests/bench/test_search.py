"""The bench of the supervisors: AB-MCTS is TreeQuest's, and a search by values reaches results."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from bench.search import anchor, programs

TREEQUEST = {
    # Means of 1000 searches each, by `python -m bench.search` with TreeQuest 0.3.3.
    ("README", "gaussian"): (0.976, 22.829, 2.93, 1.0),
    ("README", "beta"): (0.976, 20.301, 3.287, 1.0),
    ("refine", "gaussian"): (0.723, 12.967, 3.604, 1.0),
    ("refine", "beta"): (0.706, 15.023, 3.722, 1.0),
    ("two models", "gaussian"): (0.582, 16.233, 3.464, 0.774),
    ("two models", "beta"): (0.541, 18.23, 3.531, 0.645),
}
"""Best score, width, depth and share of the last action."""


@pytest.mark.parametrize(("problem", "posterior"), TREEQUEST)
def test_abmcts_searches_as_treequest_does(problem: str, posterior: Any) -> None:
    found = anchor.measure("hive", problem, posterior, 60)
    for (name, mean), known in zip(found.items(), TREEQUEST[problem, posterior], strict=True):
        assert abs(mean.mean - known) <= 3.5 * mean.error + 1e-9, name


@pytest.mark.skipif(importlib.util.find_spec("treequest") is None, reason="needs treequest")
@pytest.mark.parametrize("posterior", ["gaussian", "beta"])
@pytest.mark.parametrize("problem", anchor.PROBLEMS)
def test_both_libraries_side_by_side(problem: str, posterior: Any) -> None:
    ours = anchor.measure("hive", problem, posterior, 150)
    theirs = anchor.measure("treequest", problem, posterior, 150)
    for name, mean in ours.items():
        other = theirs[name]
        assert abs(mean.mean - other.mean) <= 3.5 * (mean.error**2 + other.error**2) ** 0.5 + 1e-9, name


def test_a_search_by_values_reaches_results() -> None:
    shares = programs.measure(6)
    assert shares["MCTS value"][0] >= 0.3, "of the ladders; once it was 0"
    assert all(couplets > 0 for _, _, couplets in shares.values())
