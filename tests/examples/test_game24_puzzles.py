"""All puzzles, their order, and the random baseline."""

from __future__ import annotations

import asyncio
import random
import re
from fractions import Fraction
from statistics import fmean

import pytest
from hive_frontend import (
    Client,
    Once,
    Request,
    Sampling,
    Supervisor,
    TreeOfThoughts,
    arun,
)
from hypothesis import given
from hypothesis import strategies as st

from examples.game24 import prompts
from examples.game24.program import game24
from examples.game24.puzzles import COUNT, TEST_SET, Puzzle, luck, puzzles, ranked
from examples.game24.random_baseline import random_model, random_searches
from examples.game24.rules import Numbers, legal_steps, numbers_of, parse_step, solvable, step_regex


def test_there_are_1362_puzzles_and_all_can_be_solved() -> None:
    assert len(ranked()) == len({puzzle.numbers for puzzle in ranked()}) == COUNT == 1362
    assert all(puzzle.luck > 0 for puzzle in ranked())
    sample = random.Random(0).sample(ranked(), 40)
    assert all(solvable(puzzle.numbers) for puzzle in sample)


def test_ranks_go_from_easy_to_hard() -> None:
    order = [(-puzzle.luck, puzzle.numbers) for puzzle in ranked()]
    assert order == sorted(order)
    assert [puzzle.rank for puzzle in ranked()] == list(range(COUNT))
    # Fixed, so that a change of the rule, which would change every reported number, cannot go unnoticed.
    assert [str(puzzle) for puzzle in puzzles(0, 3)] == ["12 12 12 12", "2 2 2 12", "4 6 6 6"]
    assert str(puzzles(COUNT - 1, COUNT)[0]) == "7 10 11 13"
    assert [puzzle.rank for puzzle in puzzles(TEST_SET.start, TEST_SET.stop)] == list(TEST_SET)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 5), (7, 3), (0, COUNT + 1)])
def test_ranks_outside_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="ranks must satisfy"):
        puzzles(start, stop)


def test_luck_is_the_share_of_uniform_steps() -> None:
    assert luck(numbers_of((3, 8))) == Fraction(1, 5)  # 8 * 3 among 8+3, 8-3, 8*3, 8/3, 3/8
    assert luck(numbers_of((12, 12))) == Fraction(1, 4)  # 12 / 12 is written once
    assert luck(numbers_of((1, 1, 1, 1))) == 0


def random_outcomes(
    puzzle: Puzzle, supervisor: Supervisor, *, seed: int, runs: int, distinct: bool = False
) -> list[bool]:
    async def search(model: Client, seed: int) -> bool:
        result = await arun(game24, puzzle.numbers, 1, model=model, seed=seed, supervisor=supervisor)
        return result.best is not None

    return asyncio.run(random_searches(search, seed=seed, runs=runs, distinct=distinct))


def test_the_random_arm_repeats_itself() -> None:
    thoughts = TreeOfThoughts(branch_at="propose", branching=3, breadth=2)
    puzzle = puzzles(0, 1)[0]
    outcomes = random_outcomes(puzzle, thoughts, seed=1, runs=20)
    assert outcomes == random_outcomes(puzzle, thoughts, seed=1, runs=20)
    assert set(outcomes) == {True, False}
    assert outcomes != random_outcomes(puzzle, thoughts, seed=2, runs=20)


def test_a_random_search_of_one_path_solves_as_often_as_luck_says() -> None:
    puzzle = puzzles(0, 1)[0]
    share = fmean(random_outcomes(puzzle, Once(), seed=0, runs=1000))
    deviation = (float(puzzle.luck) * (1 - float(puzzle.luck)) / 1000) ** 0.5
    assert share == pytest.approx(float(puzzle.luck), abs=4 * deviation)


def test_a_wider_random_search_solves_more() -> None:
    puzzle = puzzles(300, 301)[0]
    narrow, wide = (
        sum(
            random_outcomes(
                puzzle, TreeOfThoughts(branch_at="propose", branching=k, breadth=k), seed=0, runs=30
            )
        )
        for k in (2, 7)
    )
    assert narrow < wide


def test_random_answers_are_legal_and_cover_all_that_is_legal() -> None:
    numbers = numbers_of((3, 8))
    model = random_model()
    steps = set()
    for sample in range(200):
        sampling = Sampling(regex=step_regex(numbers), stop=("=",))
        request = Request((), sampling, 7, "proposer", "s", "0", sample, prompts.propose(numbers))
        completion = model.answer_now(request)
        assert completion is not None
        steps.add(parse_step(completion.text))
    assert steps == set(legal_steps(numbers))


def test_a_random_search_that_repeats_no_proposal_solves_more() -> None:
    puzzle = puzzles(300, 301)[0]
    thoughts = TreeOfThoughts(branch_at="propose", branching=5, breadth=3)
    same, other = (
        sum(random_outcomes(puzzle, thoughts, seed=0, runs=60, distinct=flag)) for flag in (False, True)
    )
    assert same < other


@given(st.lists(st.integers(1, 13), min_size=2, max_size=4).map(numbers_of), st.integers(0, 2**63 - 1))
def test_distinct_random_answers_come_once_until_all_are_used_up(numbers: Numbers, seed: int) -> None:
    model = random_model(distinct=True)
    texts = []
    for sample in range(len(legal_steps(numbers)) + 2):
        # Whoever asks: two branches of a search may reach the same position.
        sampling = Sampling(regex=step_regex(numbers), stop=("=",))
        state = f"0.{sample % 3}"
        request = Request((), sampling, seed, "proposer", "s", state, sample, prompts.propose(numbers))
        completion = model.answer_now(request)
        assert completion is not None
        texts.append(completion.text)
    steps = [str(step) for step in legal_steps(numbers)]
    assert sorted(texts[:-2]) == sorted(steps)
    assert set(texts[-2:]) <= set(steps)


def test_prompts_show_the_numbers_last_and_true_examples_only() -> None:
    *examples, question = prompts.propose(numbers_of((1, 2, 3, 4))).split("\n")
    assert question == "1 2 3 4: "
    for example in examples:
        left, step, result = re.split(": | = ", example)
        assert parse_step(step) in legal_steps(numbers_of(map(int, left.split())))
        assert parse_step(step).result == int(result)
    assert prompts.value(numbers_of((1, 2)))[-1] == ("user", "1 2")
    assert all(solvable(numbers) for numbers in prompts.EXAMPLE_PUZZLES)
