"""The random baseline: the search of a method with a random patch where a model would be asked.

It is the same program under the same supervisor, held to the same edits of the same lines, with as many patches to
try: first each line, then each text of the line is equally likely. Nothing is looked at, since nothing would come of
it. What the baseline repairs is what grammar, simulation and a budget are worth on their own; only what a model
repairs beyond that is the model's doing. It costs nothing but simulations, so each bug is searched `lots` times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.rtl_repair.methods import Attempt, Method, Shape, attempts
from examples.random_model import random_model
from examples.rtl_repair.bugs import Bug

_STRIDE: Final = 1_000_003
"""Between the seeds of random searches: more than there are bugs, so that theirs do not meet."""
_SESSIONS: Final = 16
"""Searches at once: what takes time is simulated in other processes."""


async def random_searches(
    bugs: Sequence[Bug], method: Method, shape: Shape, *, seed: int, lots: int
) -> tuple[list[Attempt], float]:
    """Search for the repair of each bug `lots` times at random; also the seconds that it took. The same seed tries
    the same patches."""
    done: list[Attempt] = []
    seconds = 0.0
    for lot in range(lots):
        drawn, took = await attempts(
            bugs, method, shape, random_model(), seed=seed + lot * _STRIDE, sessions=_SESSIONS, lookups=0
        )
        done += drawn
        seconds += took
    return done, seconds
