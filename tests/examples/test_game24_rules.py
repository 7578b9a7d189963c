"""The rules are exact, and the grammar admits the legal steps: all of them and nothing else."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.game24.rules import (
    Numbers,
    RuleError,
    Step,
    apply_step,
    describe,
    is_solved,
    legal_steps,
    numbers_of,
    parse_step,
    show,
    solvable,
    solve,
    step_regex,
    successors,
)

NUMBER = st.one_of(
    st.integers(0, 200).map(Fraction), st.fractions(min_value=0, max_value=50, max_denominator=30)
)
POSITION = st.lists(NUMBER, min_size=2, max_size=4).map(numbers_of)


@given(POSITION)
def test_the_grammar_admits_every_legal_step(numbers: Numbers) -> None:
    for step in legal_steps(numbers):
        assert re.fullmatch(step_regex(numbers), f"{step} =")
        assert parse_step(f"{step} =") == parse_step(f"{step} ") == parse_step(str(step)) == step


@given(POSITION, NUMBER, st.sampled_from("+-*/"), NUMBER)
def test_the_grammar_admits_nothing_else(
    numbers: Numbers, left: Fraction, operator: str, right: Fraction
) -> None:
    text = f"{left} {operator} {right} ="
    legal = parse_step(text) in legal_steps(numbers)
    assert (re.fullmatch(step_regex(numbers), text) is not None) == legal
    if not legal:
        with pytest.raises(RuleError, match="not a legal step"):
            apply_step(numbers, parse_step(text))


@given(POSITION)
def test_no_admitted_string_is_a_prefix_of_another(numbers: Numbers) -> None:
    texts = [f"{step} =" for step in legal_steps(numbers)]
    assert not [(a, b) for a in texts for b in texts if a != b and b.startswith(a)]


@given(POSITION, st.data())
def test_a_step_replaces_its_operands_by_the_exact_result(numbers: Numbers, data: st.DataObject) -> None:
    step = data.draw(st.sampled_from(legal_steps(numbers)))
    after = apply_step(numbers, step)
    left, right = step.left, step.right
    exact = {"+": left + right, "-": left - right, "*": left * right}.get(step.operator)
    assert step.result == (left / right if exact is None else exact)
    assert step.result >= 0
    assert sorted([*after, left, right]) == sorted([*numbers, step.result])
    assert after in successors(numbers)


@given(POSITION)
def test_shown_numbers_read_back_as_they_were(numbers: Numbers) -> None:
    assert numbers_of(map(Fraction, show(numbers).split())) == numbers


@pytest.mark.parametrize("values", [(3, 3, 8, 8), (1, 3, 4, 6), (1, 5, 5, 5), (4, 4, 10, 10), (2, 2, 2, 12)])
def test_solutions_lead_to_24(values: tuple[int, ...]) -> None:
    position = numbers_of(values)
    steps = solve(position)
    assert steps is not None
    for step in steps:
        position = apply_step(position, step)
    assert is_solved(position)


@pytest.mark.parametrize("values", [(1, 1, 1, 1), (13, 13, 13, 13), (1, 1, 1, 7), (6, 7, 7, 13)])
def test_some_numbers_cannot_make_24(values: tuple[int, ...]) -> None:
    assert not solvable(numbers_of(values))


def test_what_is_left_is_shown_with_the_step() -> None:
    numbers = numbers_of((3, 5, 7, 8))
    assert describe(numbers, parse_step("8 - 3 =")) == "8 - 3 = 5 (left: 5 5 7)"
    assert describe(numbers_of((3, 8)), parse_step("8 / 3")) == "8 / 3 = 8/3 (left: 8/3)"


@pytest.mark.parametrize("text", ["", "8", "8 +", "8 % 3 =", "8+3 =", "-8 + 3 =", "8 + 3 = 11", "8 / 3/0 ="])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(RuleError, match="not a step"):
        parse_step(text)


def test_one_number_leaves_no_step() -> None:
    assert legal_steps(numbers_of((24,))) == ()
    with pytest.raises(RuleError, match="no step is left for '24'"):
        step_regex(numbers_of((24,)))


def test_zero_is_never_a_divisor() -> None:
    assert {str(step) for step in legal_steps(numbers_of((0, 4)))} == {"4 + 0", "4 - 0", "4 * 0", "0 / 4"}
    assert Step(Fraction(0), "/", Fraction(0)) not in legal_steps(numbers_of((0, 0)))
