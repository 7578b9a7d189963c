"""The prompts of the models, and what their answers count.

The proposer continues a plain list of positions and steps: short, since every search begins by reading it.
The valuer continues a chat of judged positions. Among the forms tried on the embedded model no other told solvable
from hopeless positions clearly better, and this one is hardly better than guessing: on two samples of positions
with two or three numbers the areas under the curve were 0.58 to 0.69, where 0.5 is a coin.

Every example is either a step of a puzzle worked out here, which `EXAMPLE_PUZZLES` names so that an experiment
can leave them out, or a judgement, most of them those that the Tree-of-Thoughts paper shows its valuer.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from examples.game24.rules import Numbers, apply_step, numbers_of, parse_step, show

_WORKED: Final = (
    ((4, 4, 6, 8), ("8 + 4", "6 - 4", "12 * 2")),
    ((2, 9, 10, 12), ("12 * 2", "10 - 9", "24 * 1")),
    ((4, 9, 10, 13), ("13 - 10", "9 - 3", "6 * 4")),
    ((1, 4, 8, 8), ("8 / 4", "2 + 1", "8 * 3")),
)
EXAMPLE_PUZZLES: Final = frozenset(numbers_of(values) for values, _ in _WORKED)

_JUDGED: Final = (
    ("10 14", "sure"),
    ("11 12", "impossible"),
    ("4 4 10", "sure"),
    ("4 9 11", "sure"),
    ("5 7 8", "likely"),
    ("5 6 6", "likely"),
    ("10 10 11", "impossible"),
    ("1 3 3", "impossible"),
    ("3 8", "sure"),
    ("2 5", "impossible"),
)

WORTH: Final = {"sure": 20.0, "likely": 1.0, "impossible": 0.001}
"""What each word of the valuer adds to a position's score: the words and weights of the paper."""


def _worked_examples() -> str:
    text = ""
    for values, steps in _WORKED:
        numbers = numbers_of(values)
        for step in map(parse_step, steps):
            text += f"{show(numbers)}: {step} = {step.result}\n"
            numbers = apply_step(numbers, step)
    return text


_PROPOSE: Final = _worked_examples()
_VALUE: Final = (
    ("system", "Can the numbers reach 24 with + - * /? Answer sure, likely or impossible."),
    *(turn for numbers, word in _JUDGED for turn in (("user", numbers), ("assistant", word))),
)


def propose(numbers: Numbers) -> str:
    """A text whose next words are a step from `numbers`; `rules.step_regex` constrains them."""
    # The blank before the step belongs to the prompt: with digits as tokens of their own, as most models have
    # them, it is a token that the grammar would otherwise have to admit, and every proposal to pay for.
    return f"{_PROPOSE}{show(numbers)}: "


def position(prompt: str) -> Numbers:
    """The numbers that a text made by `propose` asks about."""
    return numbers_of(map(Fraction, re.findall(r"[\d/]+", prompt.rpartition("\n")[2])))


def propose_role(numbers: Numbers) -> str:
    """The same for a model that was trained as the proposer (`bench.training`), which needs no examples."""
    return f"Step from {show(numbers)}: "


def value_role(numbers: Numbers) -> str:
    """A text whose next word is one of `WORTH`, for a model that was trained as the valuer."""
    return f"Value of {show(numbers)}: "


def value(numbers: Numbers) -> list[tuple[str, str]]:
    """A chat whose next turn is one of the words of `WORTH`, judging whether `numbers` can make 24."""
    return [*_VALUE, ("user", show(numbers))]
