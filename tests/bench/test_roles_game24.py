"""Lessons in Game of 24: right, and none about the test set."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from bench.training import game24
from bench.training.game24 import (
    BY_HEART,
    good_steps,
    judgements,
    met,
    positions_of,
    proposals,
    taught_puzzles,
    verdict,
)
from examples.game24 import prompts
from examples.game24.puzzles import puzzles
from examples.game24.rules import (
    Numbers,
    apply_step,
    is_solved,
    numbers_of,
    parse_step,
    solvable,
    step_regex,
    successors,
)


@pytest.fixture(scope="module")
def taught() -> list[Numbers]:
    return taught_puzzles(20, 24, random.Random(0))


@pytest.fixture(scope="module")
def positions(taught: list[Numbers]) -> list[Numbers]:
    return list(positions_of(taught[:30] + taught[-5:]))


def test_test_set_and_tuning_set_are_held_out_and_nothing_else(taught: list[Numbers]) -> None:
    of_the_game = {puzzle.numbers for puzzle in puzzles(0, 1362)}
    kept_back = {puzzle.numbers for puzzle in puzzles(900, 1050)}
    assert set(taught[:-20]) == of_the_game - kept_back
    assert len(set(taught)) == 1212 + 20
    for further in taught[-20:]:
        assert further[-1] > 13
        assert solvable(further)


def test_there_are_only_so_many_puzzles() -> None:
    with pytest.raises(ValueError, match="further puzzles, not 5000"):
        taught_puzzles(5000, 14, random.Random(0))


def test_positions_are_all_that_can_follow_each_once(positions: list[Numbers]) -> None:
    assert len(set(positions)) == len(positions)
    known = set(positions)
    for position in positions:
        assert 2 <= len(position) <= 4
        assert len(position) == 2 or set(successors(position)) <= known


def test_every_answer_of_the_proposer_is_written_by_the_rules_and_good(positions: list[Numbers]) -> None:
    lessons = proposals(positions)
    assert len(lessons) > 50
    for lesson in lessons:
        numbers = prompts.position(lesson.prompt)
        assert lesson.prompt == prompts.propose_role(numbers)
        for answer in lesson.answers:
            assert re.fullmatch(step_regex(numbers), answer)
            assert solvable(apply_step(numbers, parse_step(answer)))


def test_what_follows_a_puzzle_is_taught_more_often_than_the_puzzle(positions: list[Numbers]) -> None:
    times = Counter(prompts.position(lesson.prompt) for lesson in proposals(positions))
    assert {len(numbers) for numbers in times} == {2, 3, 4}
    assert all(count == (1 if len(numbers) == 4 else BY_HEART) for numbers, count in times.items())


def test_good_steps_are_all_of_them() -> None:
    for numbers in (numbers_of([1, 2, 3]), numbers_of([3, 8]), numbers_of([1, 1, 1]), numbers_of([4, 4, 10])):
        good = {apply_step(numbers, step) for step in good_steps(numbers)}
        assert good == {each for each in successors(numbers) if is_solved(each) or solvable(each)}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ([3, 8], "sure"),
        ([2, 5], "impossible"),
        ([1, 1, 1], "impossible"),
        ([2, 3, 4], "sure"),
        ([5, 7, 12], "sure"),
    ],
)
def test_what_the_valuer_should_say(numbers: list[int], says: str) -> None:
    assert verdict(numbers_of(numbers)) == says
    assert says in prompts.WORTH


def test_a_single_good_step_of_three_numbers_is_likely() -> None:
    single = [each for each in successors(numbers_of([4, 9, 10, 13])) if len(good_steps(each)) == 1]
    assert single
    assert {verdict(each) for each in single} == {"likely"}


def test_the_valuer_hears_of_hopeless_positions_as_often_and_of_more_of_them(
    positions: list[Numbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(game24, "HOPELESS_EACH", 3)
    lessons = judgements(positions, random.Random(0))
    for count in (2, 3):
        of_count = [each for each in lessons if len(prompts.position(each.prompt)) == count]
        hopeless = [each for each in of_count if each.answers == ("impossible",)]
        reachable = [each for each in of_count if each not in hopeless]
        assert len(hopeless) == len(reachable) == len(set(hopeless)) == 3 * len(set(reachable)) > 0
    for lesson in lessons:
        (says,) = lesson.answers
        assert (says != "impossible") == solvable(prompts.position(lesson.prompt))


def test_how_much_of_the_test_set_was_met(taught: list[Numbers], positions: list[Numbers]) -> None:
    assert met([]) == 0
    some, all_of_them = met(positions), met(list(positions_of(taught)))
    assert 0 < some < all_of_them < 1
