"""The `random` arm: the search of a method with every patch drawn by lot instead of by a model.

It is the same program under the same supervisor, held to the same edits of the same lines, with as many patches to
try: first each line, then each text of the line is equally likely. Nobody looks at anything, since nobody would make
use of it. What the arm repairs is what grammar, simulation and a budget are worth on their own; only what a model
repairs beyond that is the model's doing. It costs nothing but simulations, so each bug is searched `lots` times.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from hive_frontend.client import sample_seed
from hive_frontend.testing import FunctionModel

from bench.rtl_repair.bugs import Bug
from bench.rtl_repair.methods import Attempt, Method, Shape, attempts
from hive import Request

_STRIDE: Final = 1_000_003
"""Between the seeds of searches by lot: more than there are bugs, so that theirs do not meet."""
_SESSIONS: Final = 16
"""Searches at once: what takes time is simulated in other processes."""


def by_lot() -> FunctionModel:
    """A model that draws every answer by lot: the same request, the same answer. It has no words."""
    return FunctionModel(_draw)


def _draw(request: Request) -> str:
    if not request.sampling.choices:
        return "nothing of use"
    return random.Random(sample_seed(request.seed, request.sample)).choice(request.sampling.choices)


async def searches_by_lot(
    bugs: Sequence[Bug], method: Method, shape: Shape, *, seed: int, lots: int
) -> tuple[list[Attempt], float]:
    """Search for the repair of each bug `lots` times by lot; also the seconds that it took. The same seed tries the
    same patches."""
    done: list[Attempt] = []
    seconds = 0.0
    for lot in range(lots):
        drawn, took = await attempts(
            bugs, method, shape, by_lot(), seed=seed + lot * _STRIDE, sessions=_SESSIONS, lookups=0
        )
        done += drawn
        seconds += took
    return done, seconds
