"""The random baseline: the search of the program with a random answer where a model would be asked.

It is the same program under the same supervisor, with the same settings: only the model is another one. Where the
model would propose, each of `rules.legal_steps` is equally likely, which are exactly the strings that
`rules.step_regex` admits; where it would judge, each of the words that it may answer. So the baseline makes as many
proposals as the model does, whatever the algorithm. What it solves is what grammar, exact arithmetic and a budget
are worth on their own; only what a model solves beyond that is the model's doing.

Not proposing the same step twice helps on its own, too. So where the model draws its proposals without replacement
(`players.at_server`), the baseline does likewise.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from hive_frontend import Client, Request
from hive_frontend.client import sample_seed
from hive_frontend.testing import FunctionModel

from examples.game24 import prompts
from examples.game24.rules import Numbers, Step, legal_steps

T = TypeVar("T")

_STRIDE: Final = 1_000_003
"""Between the seeds of random searches: more than there are puzzles, so that theirs do not meet."""


def random_model(*, distinct: bool = False) -> FunctionModel:
    """A model with random answers: the same request, the same answer.

    With `distinct` it is a model for one search, in which it proposes each step from a position once, as long as there
    are others.
    """
    taken: dict[Numbers, set[Step]] = {}

    def draw(request: Request) -> str:
        rng = random.Random(sample_seed(request.seed, request.sample))
        if request.sampling.choices:
            return rng.choice(request.sampling.choices)
        numbers = prompts.position(request.text)
        steps = legal_steps(numbers)
        if not distinct:
            return str(rng.choice(steps))
        gone = taken.setdefault(numbers, set())
        step = rng.choice([step for step in steps if step not in gone] or steps)
        gone.add(step)
        return str(step)

    return FunctionModel(draw)


async def random_searches(
    search: Callable[[Client, int], Awaitable[T]], *, seed: int, runs: int, distinct: bool = False
) -> list[T]:
    """The results of `runs` independent random searches of a puzzle; the first has the seed itself.

    `search` plays the puzzle with a model and a seed. The same seed gives the same list.
    """
    return [await search(random_model(distinct=distinct), seed + number * _STRIDE) for number in range(runs)]
