"""The `random` arm: the search of `examples.game24` with every decision drawn by lot instead of by a model.

It proposes by the same grammar (each draw is uniform over `rules.legal_steps`, which are exactly the strings
that `rules.step_regex` admits), makes the same number of proposals per state, and keeps as many states per
depth, chosen uniformly. What it solves is what grammar, exact arithmetic and a budget are worth on their own;
only what a model solves beyond that is the model's doing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from bench.game24.rules import Numbers, apply_step, is_solved, legal_steps

STEPS: Final = 3
"""Steps from four numbers to one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a search tree: how many proposals each state gets and how many states live on per depth."""

    branching: int
    breadth: int

    def __post_init__(self) -> None:
        if self.branching < 1 or self.breadth < 1:
            raise ValueError(f"branching and breadth must be at least 1, not {self}")


def search(numbers: Numbers, shape: Shape, rng: random.Random) -> bool:
    """Whether one random search of that shape solves the puzzle.

    Like the model's search it looks at every proposal of the last depth, since 24 shows without judgement.
    """
    beam = [numbers]
    for _ in range(STEPS - 1):
        proposals = _proposals(beam, shape, rng)
        beam = rng.sample(proposals, min(shape.breadth, len(proposals)))
    return any(map(is_solved, _proposals(beam, shape, rng)))


def _proposals(beam: Iterable[Numbers], shape: Shape, rng: random.Random) -> list[Numbers]:
    return [
        apply_step(numbers, rng.choice(legal_steps(numbers)))
        for numbers in beam
        for _ in range(shape.branching)
    ]


def solved_share(numbers: Numbers, shape: Shape, *, seed: int, runs: int = 1000) -> float:
    """The share of `runs` independent random searches that solve the puzzle; the same seed, the same share."""
    rng = random.Random(f"{seed}:{numbers}")
    return fmean(search(numbers, shape, rng) for _ in range(runs))
