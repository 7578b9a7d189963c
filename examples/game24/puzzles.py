"""All solvable puzzles, ranked by difficulty.

A puzzle is a multiset of four numbers from 1 to 13 that can make 24; there are 1,362 of them.

**Difficulty** is the chance that three steps drawn uniformly from the grammar (`rules.legal_steps`) end in 24,
computed exactly. Rank 0 has the highest chance, rank 1361 the lowest; ties go by the numbers themselves. The
rule needs no human data, and it says of every rank what luck alone is worth there, which is the question a
result has to answer first. The standard test set is ranks 900 to 999, as in the Tree-of-Thoughts paper, whose
ranks come from human solving times instead: the two sets are alike in size and place, not in content.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations_with_replacement
from typing import Final

from examples.game24.rules import TARGET, Numbers, legal_steps, numbers_of, show, successors

COUNT: Final = 1362
LARGEST: Final = 13
TEST_SET: Final = range(900, 1000)
TUNING_SET: Final = range(1000, 1050)
"""Ranks that settings are chosen by, so that nothing is ever chosen by the test set; kept from training, too."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Four numbers that can make 24. `luck` is the exact chance that three uniform steps solve it."""

    rank: int
    numbers: Numbers
    luck: Fraction

    def __str__(self) -> str:
        return show(self.numbers)


@cache
def luck(numbers: Numbers) -> Fraction:
    """The chance that uniformly drawn steps lead from `numbers`, two or more, to 24.

    It is zero exactly when no sequence of steps does.
    """
    if len(numbers) == 2:  # the leaves of the tree are most of it: counting them here halves the time
        results = [step.result for step in legal_steps(numbers)]
        return Fraction(results.count(TARGET), len(results))
    following = successors(numbers)
    return sum(filter(None, map(luck, following)), Fraction()) / len(following)


@lru_cache(maxsize=1)
def ranked() -> tuple[Puzzle, ...]:
    """All puzzles, easiest first. Takes some three seconds, once per process."""
    chances = {
        numbers: chance
        for values in combinations_with_replacement(range(1, LARGEST + 1), 4)
        if (chance := luck(numbers := numbers_of(values)))
    }
    order = sorted(chances, key=lambda numbers: (-chances[numbers], numbers))
    return tuple(Puzzle(rank, numbers, chances[numbers]) for rank, numbers in enumerate(order))


def puzzles(start: int, stop: int) -> tuple[Puzzle, ...]:
    """The puzzles of ranks `start` to `stop - 1`. Raises `ValueError` outside 0..1362 or for an empty range."""
    if not 0 <= start < stop <= COUNT:
        raise ValueError(f"ranks must satisfy 0 <= start < stop <= {COUNT}, not start={start}, stop={stop}")
    return ranked()[start:stop]
