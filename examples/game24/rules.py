"""The rules of the Game of 24, exact, and the grammar of one step.

**Who writes what.** A step is shown to the model as one line, ``8 - 3 = 5 (left: 5 5 7)``. The model writes
the left-hand side, up to and including ``=``; the program computes the rest with `fractions.Fraction` and
appends it. `step_regex` admits exactly the left-hand sides that the rules allow for the numbers at hand, so
every sample is a legal step and *which* step to take is the only thing a sample decides. The alternative,
letting the model write the result and discarding wrong ones, would measure a small model's mental arithmetic
instead of its search, and would hand the model-free arm a handicap: uniform digits are almost never the right
sum. Grammar and exact arithmetic alone solve some puzzles, which is why `examples.game24.random_baseline` exists.

The closing ``=`` is part of the grammar for a reason: without it ``13 + 1`` would be a prefix of ``13 + 11``,
and a model that has never seen a line end there would hardly ever choose to stop.

**Which steps exist.** Equal steps appear once: ``+`` and ``*`` put the larger operand first, and ``-`` always
subtracts the smaller operand from the larger. Leaving negative numbers out loses no puzzle: whatever can be
reached with them can be reached, up to its sign, with absolute values. ``/`` comes in both orders, as
8 / (3 - 8 / 3) = 24 needs them, never divides by zero, and is written once for equal operands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Final, Literal, cast

Operator = Literal["+", "-", "*", "/"]
Numbers = tuple[Fraction, ...]
"""The numbers still to be joined: a multiset, kept in ascending order (see `numbers_of`)."""

TARGET: Final = Fraction(24)

_STEP = re.compile(r"\s*(\d+(?:/\d+)?) ([-+*/]) (\d+(?:/\d+)?)(?: =?)?\s*")


class RuleError(ValueError):
    """A step that is malformed, or that the rules do not allow for the numbers at hand."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on two of the numbers. Legal or not depends on the numbers: see `legal_steps`."""

    left: Fraction
    operator: Operator
    right: Fraction

    @property
    def result(self) -> Fraction:
        """The exact result. Raises `ZeroDivisionError` for a division by zero, which is never legal."""
        match self.operator:
            case "+":
                return self.left + self.right
            case "-":
                return self.left - self.right
            case "*":
                return self.left * self.right
            case "/":
                return self.left / self.right

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


def numbers_of(values: Iterable[int | Fraction]) -> Numbers:
    """The canonical form of a multiset of numbers."""
    return tuple(sorted(Fraction(value) for value in values))


def show(numbers: Numbers) -> str:
    """The numbers as prompts and pictures write them: ``5 8/3 7``-style, in ascending order."""
    return " ".join(str(number) for number in numbers)


@lru_cache(maxsize=1 << 15)
def legal_steps(numbers: Numbers) -> tuple[Step, ...]:
    """Every step the rules allow for `numbers`, each once, in a fixed order."""
    steps: dict[Step, None] = {}
    for small, large in combinations(numbers, 2):
        steps[Step(large, "+", small)] = None
        steps[Step(large, "-", small)] = None
        steps[Step(large, "*", small)] = None
        if small:
            steps[Step(large, "/", small)] = None
        if large:
            steps[Step(small, "/", large)] = None
    return tuple(steps)


def step_regex(numbers: Numbers) -> str:
    """A regular expression that admits exactly the left-hand sides of `legal_steps`, each closed by `` =``.

    It uses literals, classes, groups and alternation only, which every constrained decoder understands.
    Raises `RuleError` when fewer than two numbers are left, because then there is no step to write.
    """
    operators: dict[tuple[Fraction, Fraction], str] = {}
    for step in legal_steps(numbers):
        pair = (step.left, step.right)
        operators[pair] = operators.get(pair, "") + step.operator
    if not operators:
        raise RuleError(f"no step is left for '{show(numbers)}'")
    # Inside a class, '-' stands for itself only at the front.
    return "|".join(
        f"({left} [{''.join(sorted(signs, key='-+*/'.index))}] {right} =)"
        for (left, right), signs in operators.items()
    )


def parse_step(text: str) -> Step:
    """Read a left-hand side as `step_regex` admits it; the closing `` =`` may already be stripped.

    Raises `RuleError` for anything else. Whether the step is legal is for `apply_step` to say.
    """
    match = _STEP.fullmatch(text)
    if match is None:
        raise RuleError(f"not a step: {text!r}; expected 'NUMBER OPERATOR NUMBER ='")
    left, operator, right = match.groups()
    try:
        return Step(Fraction(left), cast(Operator, operator), Fraction(right))
    except ZeroDivisionError:
        raise RuleError(f"not a step: {text!r}; a number has the denominator 0") from None


def apply_step(numbers: Numbers, step: Step) -> Numbers:
    """The numbers that remain after `step`. Raises `RuleError` when the step is not legal for `numbers`."""
    if step not in legal_steps(numbers):
        raise RuleError(f"'{step}' is not a legal step for '{show(numbers)}'")
    return _after(numbers, step)


def successors(numbers: Numbers) -> tuple[Numbers, ...]:
    """What remains after each of `legal_steps(numbers)`, in the same order."""
    return tuple(_after(numbers, step) for step in legal_steps(numbers))


def _after(numbers: Numbers, step: Step) -> Numbers:
    remaining = list(numbers)
    remaining.remove(step.left)
    remaining.remove(step.right)
    return tuple(sorted([*remaining, step.result]))


def describe(numbers: Numbers, step: Step) -> str:
    """The whole line of a step, as prompts and pictures show it: ``8 - 3 = 5 (left: 5 5 7)``."""
    return f"{step} = {step.result} (left: {show(apply_step(numbers, step))})"


def is_solved(numbers: Numbers) -> bool:
    """Whether 24, and nothing else, remains."""
    return numbers == (TARGET,)


def solve(numbers: Numbers) -> tuple[Step, ...] | None:
    """Some sequence of steps from `numbers` to 24, or None. For generators and tests, never for guidance."""
    if is_solved(numbers):
        return ()
    for step in legal_steps(numbers):
        rest = solve(apply_step(numbers, step))
        if rest is not None:
            return (step, *rest)
    return None


def solvable(numbers: Numbers) -> bool:
    """Whether 24 can be reached from `numbers`. For generators and tests, never for guidance."""
    return solve(numbers) is not None
