"""The `random` arm: the search of `examples.game24` with every answer drawn by lot instead of by a model.

It is the same program under the same supervisor, with the same settings: only the model is another one. Where the
model would propose, each of `rules.legal_steps` is equally likely, which are exactly the strings that
`rules.step_regex` admits; where it would judge, each of the words that it may answer. So the arm makes as many
proposals as the model does, whatever the algorithm. What it solves is what grammar, exact arithmetic and a budget
are worth on their own; only what a model solves beyond that is the model's doing.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from hive_frontend import Client, Request, RunResult
from hive_frontend.client import sample_seed
from hive_frontend.testing import FunctionModel

from bench.game24 import prompts
from bench.game24.rules import legal_steps

_STRIDE: Final = 1_000_003
"""Between the seeds of searches by lot: more than there are puzzles, so that theirs do not meet."""


def by_lot() -> FunctionModel:
    """A model that draws every answer by lot: the same request, the same answer."""
    return FunctionModel(_draw)


def _draw(request: Request) -> str:
    rng = random.Random(sample_seed(request.seed, request.sample))
    if request.sampling.choices:
        return rng.choice(request.sampling.choices)
    return str(rng.choice(legal_steps(prompts.position(request.text))))


async def searches_by_lot(
    search: Callable[[Client, int], Awaitable[RunResult[Any]]], *, seed: int, runs: int
) -> list[bool]:
    """Which of `runs` independent searches by lot solve a puzzle; the first has the seed itself.

    `search` plays the puzzle with a model and a seed. The same seed gives the same list.
    """
    outcomes = []
    for number in range(runs):
        result = await search(by_lot(), seed + number * _STRIDE)
        outcomes.append(result.best is not None)
    return outcomes
