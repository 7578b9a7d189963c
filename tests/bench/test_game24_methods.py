"""Players and methods, what they may spend, and the rows that come of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from bench.game24.methods import Method, Shape, play, scores
from bench.game24.report import RANDOM, Report, row_of, table
from examples.by_agent import ByAgent
from examples.game24 import prompts
from examples.game24.players import PROPOSER, VALUER, Player, at_server
from examples.game24.puzzles import COUNT, Puzzle, puzzles
from examples.game24.random_baseline import random_model
from examples.game24.rules import is_solved, legal_steps, numbers_of, solvable, solve, successors
from hive import Case, Evaluation, Request, Totals, Usage, acompare, aevaluate
from hive.testing import FunctionModel

HOPELESS = Puzzle(0, numbers_of((1, 1, 1, 1)), luck=puzzles(0, 1)[0].luck)
SEARCHES = [method for method in Method if method is not Method.DIRECT]


def knows(request: Request) -> str:
    """Proposes the steps behind which 24 can be reached one after the other, and tells such positions from others."""
    numbers = prompts.position(request.text)
    if request.agent == VALUER:
        return "sure" if len(numbers) > 1 and solvable(numbers) else "impossible"
    good = [
        step
        for step, left in zip(legal_steps(numbers), successors(numbers), strict=True)
        if is_solved(left) or solve(left)
    ]
    return str((good or legal_steps(numbers))[request.sample % len(good or legal_steps(numbers))])


async def attempt(
    puzzle: Puzzle, method: Method, shape: Shape, player: Player, model: FunctionModel | None, *, seed: int
) -> Case:
    """The case of one puzzle; without a model, of a random search."""
    program = partial(play, method=method, shape=shape, player=player, model=model)
    played = await aevaluate(program, [puzzle], scores, seed=seed, on_error="raise")
    return played.cases[0]


async def random_attempts(
    puzzle: Puzzle, method: Method, shape: Shape, *, seed: int, lots: int
) -> list[Case]:
    program = partial(play, method=method, shape=shape, player=Player.BASE, model=None)
    played = await aevaluate(program, [puzzle], scores, seed=seed, repeat=lots, on_error="raise")
    return played.cases


def outcome(case: Case) -> tuple[object, ...]:
    """All that does not tell how long it took."""
    return case.value, case.scores, case.usage.agents


def judges(request: Request) -> str:
    """Proposes by lot, and judges as one who knows."""
    if request.agent == VALUER:
        return knows(request)
    completion = random_model().answer_now(request)
    assert completion is not None
    return completion.text


@pytest.mark.parametrize("player", Player)
@pytest.mark.parametrize("method", Method)
async def test_who_knows_the_game_solves_everything(method: Method, player: Player) -> None:
    for puzzle in (*puzzles(900, 903), *puzzles(COUNT - 2, COUNT)):
        done = await attempt(puzzle, method, Shape(), player, FunctionModel(knows), seed=1)
        assert done.scores["solved"]
        # Alike for both: only prompts differ.
        assert done.scores["proposals"] <= Shape().budget(method)


async def test_a_judge_who_knows_makes_the_difference_to_proposals_by_lot() -> None:
    some = puzzles(900, 920)
    judging = partial(
        play, method=Method.TOT, shape=Shape(), player=Player.ROLES, model=FunctionModel(judges)
    )
    drawing = partial(play, method=Method.TOT, shape=Shape(), player=Player.BASE, model=None)
    found = await acompare({"lots": drawing, "judged": judging}, some, scores, on_error="raise")
    assert found.difference("judged", "lots", "solved").value > 0


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(Method),
    st.builds(
        Shape,
        branching=st.integers(1, 6),
        breadth=st.integers(1, 4),
        votes=st.integers(1, 3),
        distinct=st.booleans(),
    ),
    st.sampled_from([HOPELESS, *puzzles(0, 3), *puzzles(900, 903)]),
    st.integers(0, 1000),
)
def test_no_method_proposes_more_than_it_may(method: Method, shape: Shape, puzzle: Puzzle, seed: int) -> None:
    (done,) = asyncio.run(random_attempts(puzzle, method, shape, seed=seed, lots=1))
    assert done.scores["proposals"] <= shape.budget(method)
    assert done.scores["proposals"] == done.usage.agents[PROPOSER].requests
    assert 0 <= done.scores["duplicates"] < done.scores["proposals"]
    judgements = done.usage.agents.get(VALUER, Usage()).requests
    assert judgements <= shape.votes_of(method) * done.scores["proposals"]
    if puzzle is HOPELESS:
        assert not done.scores["solved"]


async def test_budgets_are_alike_and_used_up_where_nothing_is_found() -> None:
    shape = Shape()
    assert {method: shape.budget(method) for method in Method} == {Method.DIRECT: 3} | dict.fromkeys(
        SEARCHES, 35
    )
    for method in Method:
        (lot,) = await random_attempts(HOPELESS, method, shape, seed=1, lots=1)
        model = random_model(distinct=shape.distinct_in(method))
        told = await attempt(HOPELESS, method, shape, Player.ROLES, model, seed=1)
        assert lot.scores["proposals"] == told.scores["proposals"]
        # Whole games do not make 35, and of some positions there are fewer steps than proposals.
        assert shape.budget(method) - 3 < lot.scores["proposals"] <= shape.budget(method)


@pytest.mark.parametrize("method", Method)
async def test_a_model_that_draws_by_lot_is_the_random_arm(method: Method) -> None:
    puzzle, shape = puzzles(300, 301)[0], Shape(votes=1)
    lots = await random_attempts(puzzle, method, shape, seed=5, lots=3)
    again = await random_attempts(puzzle, method, shape, seed=5, lots=3)
    assert [*map(outcome, lots)] == [*map(outcome, again)]
    model = random_model(distinct=shape.distinct_in(method))
    told = await attempt(puzzle, method, shape, Player.BASE, model, seed=5)
    assert outcome(lots[0]) == outcome(told)


@pytest.mark.parametrize("method", SEARCHES)
async def test_what_is_drawn_without_replacement_is_not_repeated(method: Method) -> None:
    repeated = []
    for distinct in (False, True):
        shape = Shape(distinct=distinct)
        lots = [await random_attempts(puzzle, method, shape, seed=0, lots=4) for puzzle in puzzles(900, 905)]
        repeated.append(sum(done.scores["duplicates"] for of_puzzle in lots for done in of_puzzle))
    # A position of two numbers has six steps at the most; who is there a second time must repeat some.
    assert repeated[1] < repeated[0] / 2


async def test_a_game_straight_on_takes_the_likeliest_steps_and_asks_no_judge() -> None:
    model = FunctionModel(knows)
    await attempt(puzzles(900, 901)[0], Method.DIRECT, Shape(temperature=0.7), Player.ROLES, model, seed=1)
    assert [(call.agent, call.sampling.temperature) for call in model.calls] == [(PROPOSER, 0.0)] * 3
    searching = FunctionModel(knows)
    await attempt(puzzles(900, 901)[0], Method.TOT, Shape(temperature=0.7), Player.ROLES, searching, seed=1)
    assert {call.sampling.temperature for call in searching.calls if call.agent == PROPOSER} == {0.7}


async def test_every_agent_asks_its_own_model() -> None:
    models = {PROPOSER: FunctionModel(knows), VALUER: FunctionModel(knows)}
    done = await attempt(puzzles(900, 901)[0], Method.TOT, Shape(), Player.ROLES, ByAgent(models), seed=1)
    for agent, model in models.items():
        assert {call.agent for call in model.calls} == {agent}
        assert len(model.calls) == done.usage.agents[agent].requests
        assert model.agents == [agent]
        assert len(model.ended) == 1


def test_a_player_needs_the_url_of_a_server() -> None:
    with pytest.raises(ValueError, match="must look like"):
        at_server("localhost:30000", Player.ROLES)


def usage(requests: int) -> Usage:
    return Usage(requests=requests, tokens_generated=2 * requests, tokens_replayed=requests)


def searches(flags: Sequence[Sequence[bool]]) -> Evaluation:
    agents = {"proposer": usage(10), "valuer": usage(3)}
    return Evaluation(
        name="searches",
        cases=[
            Case(
                arm="searches",
                item=item,
                repetition=repetition,
                seed=0,
                scores={"solved": flag, "proposals": 10, "duplicates": 1},
                started=item,
                seconds=1,
                usage=Totals(**dict(Usage.sum(agents.values())), agents=agents),
            )
            for item, of_puzzle in enumerate(flags)
            for repetition, flag in enumerate(of_puzzle)
        ],
    )


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5))
def test_rows_add_up(flags: list[list[bool]]) -> None:
    firsts = [of_puzzle[:1] for of_puzzle in flags]
    some = puzzles(900, 905)
    row = row_of("small", Method.TOT, searches(firsts), some, allowed=35)
    assert (row.model, row.method, row.search, row.tasks) == ("small", "tot", "tot", len(flags))
    assert row.solved == sum(first for (first,) in firsts)
    assert row.share == row.solved / row.tasks
    assert (row.requests, row.tokens_generated, row.tokens_replayed) == tuple(
        len(flags) * count for count in (13, 26, 13)
    )
    assert (row.proposals, row.duplicates) == (10 * row.tasks, row.tasks)
    assert row.wall_s == len(flags)
    lots = row_of(RANDOM, Method.TOT, searches(flags), some, allowed=35)
    assert (lots.method, lots.search, lots.tasks, lots.solved) == ("random", "tot", row.tasks, row.solved)
    assert lots.share == pytest.approx(sum(map(sum, flags)) / (4 * len(flags)))
    assert (lots.requests, lots.tokens_generated, lots.agents) == (0, 0, {})
    assert (lots.proposals, lots.duplicates) == (row.proposals, row.duplicates)
    for entry in (row, lots):
        assert entry.share_low <= entry.share <= entry.share_high
        assert [task.rank for task in entry.by_task] == list(range(900, 900 + len(flags)))
        assert sum(task.solved for task in entry.by_task) == entry.solved


def test_without_any_time_there_are_rows_of_nothing() -> None:
    row = row_of("small", Method.MCTS, searches([]), [], allowed=35)
    assert (row.tasks, row.solved, row.share, row.share_low, row.share_high) == (0, 0, 0.0, 0.0, 1.0)


def test_the_table_shows_both_arms() -> None:
    flags = [[random.Random(number).random() < 0.5] * 2 for number in range(6)]
    rows = [
        row_of(who, Method.TOT, searches(flags), puzzles(900, 906), allowed=35)
        for who in ("small + roles", RANDOM)
    ]
    report = Report(
        command="c", versions={}, machine={}, model="small", seconds=1, seed=0, concurrency=1, lots=2,
        shape=Shape(), left_out=0, rows=rows,
    )  # fmt: skip
    console = Console(width=160, record=True)
    console.print(table(report))
    text = console.export_text()
    assert "random (tot)" in text
    assert text.count(f"{rows[0].solved}/6") == 2
    assert Report.model_validate_json(report.model_dump_json()) == report
