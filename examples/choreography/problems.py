"""Short word problems about a small town, made from a seed, with their answers.

They give workflows something to talk about that has a right answer. All are our own, and of two or three steps.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Final, NamedTuple

COUNT: Final = 60
"""Problems of a set, unless more are asked for."""


class Problem(NamedTuple):
    """A question, and the whole number that answers it."""

    text: str
    answer: int


_Rule = Callable[[int, int, int], int]

_KINDS: Final[tuple[tuple[str, _Rule], ...]] = (
    (
        "{who} bakes {x} loaves a day and sells all but {y} of them. How many loaves are sold in {z} days?",
        lambda x, y, z: (x - y) * z,
    ),
    (
        "The ferry to Riverton takes {x} people. It crosses {z} times, full but for {y} seats that stay empty in "
        "all. How many people did it carry?",
        lambda x, y, z: x * z - y,
    ),
    (
        "{who} plants {z} rows of {y} tomatoes and {x} lettuces beside them. How many plants is that?",
        lambda x, y, z: y * z + x,
    ),
    (
        "The library lends {x} books on Monday and {y} more than that on Tuesday. {z} of them come back. How many "
        "are still out?",
        lambda x, y, z: 2 * x + y - z,
    ),
    (
        "A ticket for the spring festival costs {z} coins. {x} guests pay, {y} more come for free. How many coins "
        "are taken?",
        lambda x, y, z: x * z,
    ),
    (
        "{who} has {x} eggs, breaks {z} of them and gets {y} new ones. How many eggs are there now?",
        lambda x, y, z: x - z + y,
    ),
    (
        "The bus from the mill starts with {x} passengers. At the bridge {z} get off and {y} get on, at the school "
        "{z} get off. How many are left?",
        lambda x, y, z: x + y - 2 * z,
    ),
    (
        "{who} walks {z} kilometres a day on {y} days and rides {x} kilometres by bicycle. How many kilometres are "
        "that together?",
        lambda x, y, z: y * z + x,
    ),
    (
        "The choir has {x} singers and twice as many come to the rehearsal, {y} of whom only listen. How many "
        "people sing there?",
        lambda x, y, z: 2 * x - y,
    ),
    (
        "A crate holds {y} jars of honey. {who} fills {z} crates and keeps {x} jars. How many jars were there?",
        lambda x, y, z: y * z + x,
    ),
    (
        "Repairing the flood wall takes {x} sacks of sand for each of its {z} sections, and {y} sacks are there "
        "already. How many must be brought?",
        lambda x, y, z: x * z - y,
    ),
    (
        "{who} is {x} years old, {y} years older than the owner of the cafe. How old will the owner be in {z} years?",
        lambda x, y, z: x - y + z,
    ),
)
_PEOPLE: Final = ("Ada", "Bruno", "Cleo", "Dario", "Elsa", "Finn", "Greta", "Hugo")


def problems(count: int = COUNT, *, seed: int = 0) -> list[Problem]:
    """So many problems, no two with the same text; the same ones for the same seed, and fewer are the first of more."""
    rng = random.Random(seed)
    found: dict[str, Problem] = {}
    while len(found) < count:
        text, rule = rng.choice(_KINDS)
        x, y, z = rng.randint(21, 48), rng.randint(3, 12), rng.randint(2, 9)
        made = Problem(text.format(who=rng.choice(_PEOPLE), x=x, y=y, z=z), rule(x, y, z))
        found.setdefault(made.text, made)
    return list(found.values())


def answer_in(text: str) -> int | None:
    """The last whole number of a solution, which is taken for its answer; None if it has none."""
    numbers = re.findall(r"\d[\d,]*", text)
    return int(numbers[-1].replace(",", "")) if numbers else None
