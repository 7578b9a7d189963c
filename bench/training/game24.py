"""Lessons in Game of 24, exactly solved: which step to take, and what a position is worth.

Positions come from puzzles of four numbers: those of the game, less the test set (`puzzles.TEST_SET`) and the puzzles
that settings of searches are chosen by (`puzzles.TUNING_SET`), which no lesson is ever about, and others of larger
numbers, so that there is more to generalise from. What follows them, with three and two numbers, is taught as well,
whether it leads to 24 or not. A position of three numbers can be reached from several puzzles, those of the test set
among them: `met` says how many of the test set's are in a set of lessons.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Final, TypeVar

from bench.training.example import Example
from examples.game24 import prompts
from examples.game24.puzzles import LARGEST, TEST_SET, TUNING_SET, luck, puzzles
from examples.game24.rules import Numbers, Step, is_solved, legal_steps, numbers_of, successors

HOPELESS: Final = "impossible"
BY_HEART: Final = 4
"""Lessons for the proposer on each position with less than four numbers, for each lesson on a puzzle."""
_AT_ONCE: Final = 256
"""Positions that one process looks at before it is handed more."""
HOPELESS_EACH: Final = 8
"""Hopeless positions that the valuer is taught for each of the others."""


@lru_cache(maxsize=1)
def held_out() -> frozenset[Numbers]:
    """The puzzles of the test set."""
    return _of_ranks(TEST_SET)


@lru_cache(maxsize=1)
def _never_taught() -> frozenset[Numbers]:
    return held_out() | _of_ranks(TUNING_SET)


def _of_ranks(ranks: range) -> frozenset[Numbers]:
    return frozenset(puzzle.numbers for puzzle in puzzles(ranks.start, ranks.stop))


def good_steps(numbers: Numbers) -> tuple[Step, ...]:
    """The steps behind which 24 can still be reached, in the order of `legal_steps`."""
    return tuple(
        step
        for step, following in zip(legal_steps(numbers), successors(numbers), strict=True)
        if _reaches_24(following)
    )


def verdict(numbers: Numbers) -> str:
    """What the valuer should say: `sure` where several steps are good, `likely` where one of many is, or hopeless."""
    good = len(good_steps(numbers))
    if len(numbers) == 2 and good:
        return "sure"
    return (HOPELESS, "likely", "sure")[min(2, good)]


def taught_puzzles(further: int, largest: int, rng: random.Random) -> list[Numbers]:
    """All puzzles that can be solved but those kept back, and `further` ones with numbers from 14 to `largest`.

    Raises `ValueError` when there are not so many.
    """
    kept_back = _never_taught()
    game = combinations_with_replacement(range(1, LARGEST + 1), 4)
    taught = _that_reach_24(numbers for values in game if (numbers := numbers_of(values)) not in kept_back)
    larger = [
        values for values in combinations_with_replacement(range(1, largest + 1), 4) if values[-1] > LARGEST
    ]
    rng.shuffle(larger)
    found = 0
    # Some more than half of them can be solved.
    for first in range(0, len(larger), 2 * further):
        some = _that_reach_24(map(numbers_of, larger[first : first + 2 * further]))
        taught += some[: further - found]
        found += len(some[: further - found])
        if found == further:
            return taught
    raise ValueError(f"there are {found} further puzzles, not {further}")


def positions_of(taught: Iterable[Numbers]) -> Iterator[Numbers]:
    """The puzzles and what can follow them, with two numbers or more, each once."""
    seen: set[Numbers] = set()
    waiting = list(taught)
    while waiting:
        position = waiting.pop()
        if position in seen or len(position) < 2:
            continue
        seen.add(position)
        yield position
        waiting += successors(position)


def proposals(positions: Iterable[Numbers]) -> list[Example]:
    """Lessons for the proposer on each position from which 24 can be reached.

    What follows a puzzle is taught `BY_HEART` times as often: nearly all of it that can come up is among the lessons,
    so that it can be known by heart. A puzzle that comes up was never taught; who knows puzzles by heart finds no step
    in others.
    """
    positions = list(positions)
    lessons: list[Example] = []
    for position, steps in zip(positions, _of_each(good_steps, positions), strict=True):
        if steps:
            lesson = Example(prompts.propose_role(position), tuple(f"{step} =" for step in steps))
            lessons += [lesson] * (1 if len(position) == 4 else BY_HEART)
    return lessons


def judgements(positions: Iterable[Numbers], rng: random.Random) -> list[Example]:
    """Lessons for the valuer on positions that it can be asked about: those after a step.

    Half of them are hopeless: of all positions nearly 98 of 100 are, and who always says so would be right too often
    to learn anything. For each of the others there are `HOPELESS_EACH` hopeless ones with as many numbers, as far as
    there are so many, drawn at random; the others are repeated for that. With as few hopeless ones as others the
    valuer learns them all by heart, and what it has not met it takes for anything.
    """
    reachable: dict[int, list[Example]] = {2: [], 3: []}
    hopeless: dict[int, list[Example]] = {2: [], 3: []}
    asked = [position for position in positions if len(position) in reachable]
    for position, says in zip(asked, _of_each(verdict, asked), strict=True):
        kind = hopeless if says == HOPELESS else reachable
        kind[len(position)].append(Example(prompts.value_role(position), (says,)))
    lessons: list[Example] = []
    for numbers, found in reachable.items():
        lessons += found * HOPELESS_EACH
        lessons += rng.sample(hopeless[numbers], min(len(found) * HOPELESS_EACH, len(hopeless[numbers])))
    return lessons


def met(positions: Sequence[Numbers]) -> float:
    """The share of the positions after one step in the test set that are among these."""
    taught = set(positions)
    after = {following for numbers in held_out() for following in successors(numbers)}
    return len(after & taught) / len(after)


_Result = TypeVar("_Result")


def _of_each(function: Callable[[Numbers], _Result], positions: Sequence[Numbers]) -> list[_Result]:
    """What a function says of positions, in their order: of many, in as many processes as there are cores."""
    if len(positions) <= 100 * _AT_ONCE:
        return list(map(function, positions))
    with ProcessPoolExecutor() as pool:
        return list(pool.map(function, positions, chunksize=_AT_ONCE))


def _that_reach_24(puzzles: Iterable[Numbers]) -> list[Numbers]:
    puzzles = list(puzzles)
    return [numbers for numbers, can in zip(puzzles, _of_each(_reaches_24, puzzles), strict=True) if can]


def _reaches_24(numbers: Numbers) -> bool:
    return is_solved(numbers) if len(numbers) == 1 else bool(luck(numbers))
