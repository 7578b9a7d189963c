"""What is left of a run of which parts failed, or which ran out of budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    BestOfN,
    Budget,
    BudgetExceeded,
    InvalidAnswer,
    JournalError,
    ModelError,
    Request,
    Result,
    Session,
    ToolTimeout,
    TreeOfThoughts,
    agent,
    arun,
    fail,
    gather,
    gen,
    run,
    score,
    spawn,
    tool,
)
from hive_frontend.testing import FunctionModel


def picky(request: Request) -> str:
    if request.sample == 1:
        raise ModelError("the server answered 400: too long", status=400)
    return "no number" if request.sample == 2 else str(request.sample)


@agent(supervisor=BestOfN(4))
async def numbers() -> int:
    number = await gen("q", schema=int)
    score(number)
    return number


def test_a_bad_answer_drops_its_branch_on_request(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="too long"):
        run(numbers, model=FunctionModel(picky))
    result = run(numbers, model=FunctionModel(picky), on_error="drop", checkpoint=tmp_path / "j")
    assert [found.value for found in result.results] == [3, 0]
    failures = [node.failure for node in result.tree.nodes if node.status == "dead"]
    assert failures[0] == "the server answered 400: too long"
    assert str(failures[1]).startswith("the answer is not a valid int")
    assert run(numbers, replay=tmp_path / "j", on_error="drop").results == result.results


def test_errors_are_not_lost_where_nothing_else_came() -> None:
    def refuse(request: Request) -> str:
        raise ModelError(f"refused {request.sample}")

    with pytest.raises(ModelError, match="refused 0"):
        run(numbers, model=FunctionModel(refuse), on_error="drop")

    @agent(supervisor=BestOfN(2))
    async def some_fail() -> None:
        if await gen("q") == "0":
            fail("on purpose")

    assert run(some_fail, model=FunctionModel(picky), on_error="drop").best is None


def test_only_what_comes_from_outside_is_dropped() -> None:
    @agent(supervisor=BestOfN(2))
    async def broken() -> int:
        return int(await gen("q") + "x")

    with pytest.raises(ValueError, match="0x"):
        run(broken, model=FunctionModel(lambda request: str(request.sample)), on_error="drop")
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'drop', not 'ignore'"):
        run(broken, model=FunctionModel(picky), on_error="ignore")  # type: ignore[arg-type]


def test_a_tool_that_takes_too_long_and_a_helper_are_dropped_alike() -> None:
    import time

    @agent
    async def helper() -> int:
        return await gen("q", schema=int, sample=2)

    @agent(supervisor=BestOfN(3))
    async def program() -> str:
        way = await gen("way", sample=0)
        if (turn := await tool(turns.pop)) == 0:
            await tool(time.sleep, 2, timeout=0.02)
        elif turn == 1:
            await spawn(helper)
        return str(way)

    turns = [0, 1, 2]
    result = run(program, model=FunctionModel(picky), on_error="drop")
    assert [found.value for found in result.results] == ["0"]
    failures = sorted(str(node.failure) for node in result.tree.nodes if node.failure)
    assert [text.split(":")[0] for text in failures] == [
        "agent helper",
        "the answer is not a valid int",
        "tool sleep took longer than 0.02 seconds",
    ]


async def refuse_one(request: Request) -> str:
    if request.text == "bad":
        raise ModelError("refused")
    return request.text


@pytest.mark.parametrize("waits", [True, False])
async def test_a_gather_may_return_exceptions(tmp_path: Path, waits: bool) -> None:
    ran: list[str] = []

    def broken(text: str) -> None:
        ran.append(text)
        raise KeyError(text)

    @agent(supervisor=BestOfN(2))
    async def program() -> list[Any]:
        found = await gather(
            gen("a"),
            gen("bad"),
            gather(tool(broken, "k"), gen("b"), return_exceptions=True),
            return_exceptions=True,
        )
        await gen("again")
        return [repr(each) for each in found]

    expected = ["'a'", "ModelError('refused')", "[KeyError('k'), 'b']"]
    model = FunctionModel(refuse_one)
    result = await arun(program, model=model, checkpoint=tmp_path / "j")
    assert [found.value for found in result.results] == [expected, expected]
    assert (await arun(program, replay=tmp_path / "j")).results == result.results
    assert len(ran) == 2, "what failed is not done again either"
    async with Session(model):
        assert await program() == expected


def test_what_is_no_exception_is_not_returned() -> None:
    @agent
    async def program() -> Any:
        return await gather(gen("a"), gen("b"), return_exceptions=True)

    assert run(program, model=FunctionModel(refuse_one), budget=Budget(calls=1)).value is None

    @agent
    async def odd() -> Any:
        return await gather(tool(lambda: lambda: 1), return_exceptions=True)

    assert callable(run(odd, model=FunctionModel(refuse_one)).value[0])


def test_nor_is_what_ends_the_run(tmp_path: Path) -> None:
    @agent
    async def odd() -> Any:
        return await gather(tool(lambda: lambda: 1), return_exceptions=True)

    with pytest.raises(JournalError):
        run(odd, model=FunctionModel(refuse_one), checkpoint=tmp_path / "j")


@agent(supervisor=TreeOfThoughts(branch_at="step", branching=3, breadth=2))
async def climb(length: int) -> str:
    text = ""
    while len(text) < length:
        text += await gen(text, name="step")
        score(int(text[-1]) + len(text))
    return text


def test_a_spent_budget_gives_the_best_scored_state() -> None:
    model = FunctionModel(lambda request: str(request.sample))
    result = run(climb, 9, model=model, seed=1, budget=Budget(calls=8))
    assert result.results == ()
    assert result.value is None
    assert result.best == Result(None, 4.0, "0.2.2", finished=False)
    assert [reply for node in result.tree.path_to(result.best.state) for reply in node.replies] == ["2", "2"]
    whole = run(climb, 3, model=model, seed=1, budget=Budget(calls=40))
    assert whole.best is not None
    assert whole.best.finished
    assert run(climb, 9, model=model, seed=1, budget=Budget(calls=0)).best is None, "nothing has a score"


def test_and_not_that_of_a_helper() -> None:
    @agent(budget=Budget(calls=1))
    async def helper() -> str:
        score(9)
        return await gen("1") + await gen("2")

    @agent
    async def program() -> str:
        score(1)
        return await helper()

    best = run(program, model=FunctionModel(lambda request: "a")).best
    assert best == Result(None, 1.0, "0", finished=False)


def test_errors_have_their_places() -> None:
    assert not issubclass(BudgetExceeded, Exception)
    assert issubclass(InvalidAnswer, ModelError)
    assert issubclass(ToolTimeout, Exception)
