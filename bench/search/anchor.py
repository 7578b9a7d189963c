"""AB-MCTS-A by Hive and by TreeQuest, on the same problems: the example of TreeQuest's README, and two harder ones."""

from __future__ import annotations

import importlib
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from hive import ABMCTS, Request, agent, choose, gen, run, score
from hive.testing import FunctionModel

STEPS = 40
"""Answers that a search may generate."""
Posterior = Literal["gaussian", "beta"]
Generate = Callable[[random.Random, float | None, str], float]
"""Returns the score of an answer, given that of its parent (None for a first answer) and the action."""


@dataclass(frozen=True)
class Problem:
    generate: Generate
    actions: tuple[str, ...]


def _clipped(score: float) -> float:
    return min(1.0, max(0.0, score))


PROBLEMS = {
    "README": Problem(lambda rng, parent, action: rng.random(), ("A",)),
    "refine": Problem(
        lambda rng, parent, action: _clipped(
            rng.random() / 2 if parent is None else parent + rng.gauss(0.03, 0.12)
        ),
        ("A",),
    ),
    "two models": Problem(
        lambda rng, parent, action: _clipped(
            (0.2 if parent is None else parent) + rng.gauss(0.04 if action == "strong" else -0.05, 0.1)
        ),
        ("weak", "strong"),
    ),
}


@dataclass(frozen=True)
class Shape:
    """What a search came to."""

    best: float
    """The best score."""
    width: int
    """Answers generated at the root."""
    depth: int
    last_action: float
    """Share of answers by the last action."""


@agent
async def refine(actions: tuple[str, ...]) -> float:
    """Refine an answer, which is only its score, until the search ends."""
    answer: float | None = None
    while True:
        action = await choose(actions, name="action")
        answer = float(await gen(f"{action} {answer}"))
        score(answer, answer)


def by_hive(problem: Problem, posterior: Posterior, seed: int) -> Shape:
    def answer(request: Request) -> str:
        action, _, parent = request.text.partition(" ")
        rng = random.Random(f"{request.seed} {request.sample}")
        return repr(problem.generate(rng, None if parent == "None" else float(parent), action))

    supervisor = ABMCTS(branch_at="action", simulations=STEPS, posterior=posterior, bounds=(0, 1))
    result = run(refine, problem.actions, model=FunctionModel(answer), seed=seed, supervisor=supervisor)
    nodes = [node for node in result.tree.nodes if node.name == "action" and node.parent is not None]
    calls = [node.prompts[0] for node in result.tree.nodes if node.prompts]
    return Shape(
        best=cast(float, result.value),
        width=result.tree.nodes[0].fired,
        depth=max(node.id.count(".") // 2 for node in nodes),
        last_action=sum(problem.actions[-1] in call for call in calls) / len(calls),
    )


def by_treequest(problem: Problem, posterior: Posterior, seed: int) -> Shape:
    treequest = importlib.import_module("treequest")
    importlib.import_module("numpy").random.seed(seed)
    rng = random.Random(seed)

    def generate(action: str, parent: tuple[float, str] | None) -> tuple[tuple[float, str], float]:
        found = problem.generate(rng, None if parent is None else parent[0], action)
        return (found, action), found

    algorithm = treequest.ABMCTSA(dist_type=posterior)
    tree = algorithm.init_tree()
    actions = {action: partial(generate, action) for action in problem.actions}
    for _ in range(STEPS):
        tree = algorithm.step(tree, actions, inplace=True)
    nodes = [node for node in tree.tree.get_nodes() if node.parent is not None]
    return Shape(
        best=max(node.score for node in nodes),
        width=len(tree.tree.root.children),
        depth=max(map(_depth, nodes)),
        last_action=sum(node.state[1] == problem.actions[-1] for node in nodes) / len(nodes),
    )


def _depth(node: Any) -> int:
    return 0 if node.parent is None else 1 + _depth(node.parent)


LIBRARIES = {"hive": by_hive, "treequest": by_treequest}


@dataclass(frozen=True)
class Mean:
    """The mean of a figure over some searches, with its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"


def measure(library: str, problem: str, posterior: Posterior, searches: int) -> dict[str, Mean]:
    """Return the mean of each figure of a `Shape`."""
    shapes = [LIBRARIES[library](PROBLEMS[problem], posterior, seed) for seed in range(searches)]
    figures = {name: [float(getattr(shape, name)) for shape in shapes] for name in Shape.__dataclass_fields__}
    return {
        name: Mean(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)))
        for name, values in figures.items()
    }
