"""Runs that end early: at a score, when they are stopped, or with their budget. They return what they have."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    ABMCTS,
    MCTS,
    Beam,
    BestOfN,
    Budget,
    Once,
    Request,
    Result,
    SelfRefine,
    Shared,
    Supervisor,
    TreeOfThoughts,
    agent,
    arun,
    gen,
    run,
    score,
    spawn,
    stream,
    tool,
)
from hive_frontend.testing import FunctionModel


@agent
async def climb(height: int) -> list[str]:
    """Offers the list that it goes on to change."""
    steps: list[str] = []
    while len(steps) < height:
        steps.append(str(await gen(f"after {steps}", name="step")))
        score(len(steps) + int(steps[-1]) / 10, steps)
    return steps


async def digit(request: Request) -> str:
    await asyncio.sleep(0.001 * (request.sample % 3))
    return str((request.sample * 7 + request.seed) % 10)


model = FunctionModel(digit)
SUPERVISORS = [
    Once(),
    BestOfN(6),
    TreeOfThoughts(branch_at="step", branching=3, breadth=2),
    Beam(at="step", width=2, expand=3),
    MCTS(branch_at="step", simulations=400),
    MCTS(branch_at="step", simulations=400, rollout="value"),
    ABMCTS(branch_at="step", simulations=400),
    SelfRefine(at="step"),
]


@pytest.mark.parametrize("supervisor", SUPERVISORS, ids=repr)
def test_every_search_stops_at_a_score(supervisor: Supervisor) -> None:
    result = run(climb, 30, model=model, seed=1, supervisor=supervisor, stop_at=3)
    assert result.stopped
    assert result.best is not None
    assert result.best.score is not None
    assert 3 <= result.best.score < 4
    assert not result.best.finished, "it was only offered"
    assert len(result.value or []) == 3, "as it was when it was offered"
    assert result.tree.path_to(result.best.state)[-1].status == "result"
    assert result.totals.requests < 400


@pytest.mark.parametrize("supervisor", SUPERVISORS, ids=repr)
def test_a_predicate_of_results(supervisor: Supervisor) -> None:
    seen: list[Result[list[str]]] = []

    def enough(result: Result[list[str]]) -> bool:
        seen.append(result)
        return result.finished

    result = run(climb, 2, model=model, seed=1, supervisor=supervisor, stop_at=enough)
    assert result.stopped
    assert any(found.finished for found in result.results)
    assert [found.finished for found in seen].count(True) == 1
    assert {len(found.value) for found in seen} == {1, 2}


def test_a_run_that_finds_nothing_good_enough_is_not_stopped() -> None:
    result = run(climb, 2, model=model, seed=1, supervisor=BestOfN(3), stop_at=99)
    assert not result.stopped
    assert len(result.results) == 3
    assert all(found.finished for found in result.results), "offers do not show beside better results"


@pytest.mark.parametrize("wrong", ["3", True, float("nan"), [3]])
def test_what_is_no_score(wrong: Any) -> None:
    with pytest.raises(TypeError, match="stop_at must be a score or a function of a Result, not"):
        run(climb, 2, model=model, stop_at=wrong)


@pytest.mark.parametrize("supervisor", SUPERVISORS, ids=repr)
def test_a_spent_budget_leaves_the_best_offer(supervisor: Supervisor) -> None:
    result = run(climb, 30, model=model, seed=1, supervisor=supervisor, budget=Budget(calls=9))
    assert result.best is not None
    assert not result.best.finished
    assert not result.stopped
    scores = [node.score for node in result.tree.nodes if node.score is not None and node.status != "dead"]
    assert result.best.score == max(scores)
    assert len(result.value or []) == int(max(scores))


def test_a_deadline_leaves_the_best_offer() -> None:
    began = time.monotonic()
    result = run(
        climb,
        10**6,
        model=model,
        seed=1,
        supervisor=BestOfN(2),
        budget=Budget(seconds=0.3),
        max_concurrency=2,
    )
    assert time.monotonic() - began < 5
    assert result.best is not None
    assert not result.best.finished
    assert len(result.value or []) > 3


def test_an_agent_that_another_one_awaits_returns_its_best_offer() -> None:
    @agent(supervisor=ABMCTS(branch_at="step", simulations=12))
    async def helper() -> str:
        text = ""
        while True:
            text += str(await gen(f"after {text}", name="step"))
            score(len(text), text)

    @agent
    async def program() -> list[str]:
        return [await helper(), await spawn(helper)]

    found = run(program, model=model, seed=1)
    assert found.value is not None
    assert all(len(text) >= 3 for text in found.value)
    assert found.best is not None
    assert found.best.finished


def test_an_offer_may_be_none_and_a_result_that_is_as_good_wins() -> None:
    @agent(supervisor=BestOfN(2))
    async def program() -> str | None:
        if await gen("q", name="first") == "0":
            score(5, None)
        else:
            score(5)
        return await gen("r")

    done = run(program, model=FunctionModel(lambda request: str(request.sample)), seed=1)
    assert [found.finished for found in done.results] == [True, True]
    cut = run(
        program, model=FunctionModel(lambda request: str(request.sample)), seed=1, budget=Budget(calls=2)
    )
    assert cut.best == Result(None, 5.0, "0.0.1", finished=False)


async def test_a_stream_is_stopped() -> None:
    async with stream(climb, 10**6, model=model, seed=1, supervisor=BestOfN(2)) as live:
        async for piece in live:
            if piece.state.count(".") > 4:
                live.stop()
    assert live.result.stopped
    assert live.result.best is not None
    assert not live.result.best.finished
    assert len(live.result.value or []) >= 4


async def test_a_stream_is_stopped_before_it_has_begun() -> None:
    async with stream(climb, 3, model=model, seed=1) as live:
        live.stop()
        async for _ in live:
            pass
    assert live.result.stopped
    assert live.result.best is None


async def test_a_run_within_a_tool_is_its_own() -> None:
    async def inside() -> int:
        result = await arun(climb, 2, model=model, seed=1, stop_at=1)
        return len(result.value or [])

    @agent
    async def program() -> list[int]:
        return [await tool(inside), await tool(inside)]

    async with stream(program, model=model, seed=1) as live:
        async for _ in live:
            pass
    assert live.result.value == [1, 1]
    assert not live.result.stopped


async def test_cancelling_is_not_stopping() -> None:
    task = asyncio.create_task(arun(climb, 10**6, model=model, seed=1))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_stopped_run_is_resumed(tmp_path: Path) -> None:
    supervisor = TreeOfThoughts(branch_at="step", branching=3, breadth=2)
    first = run(climb, 4, model=model, seed=1, supervisor=supervisor, stop_at=2, checkpoint=tmp_path / "j")
    again = FunctionModel(digit)
    whole = run(climb, 4, model=again, seed=1, supervisor=supervisor, checkpoint=tmp_path / "j")
    assert whole.best is not None
    assert whole.best.finished
    assert len(again.calls) == whole.totals.requests - first.totals.requests
    assert whole.tree == run(climb, 4, model=model, seed=1, supervisor=supervisor).tree


def test_offers_of_shared_things() -> None:
    @agent
    async def program(log: Shared[list[str]]) -> None:
        log.append(str(await gen("q")))
        score(1, len(log))
        await gen("r")

    result = run(program, [], model=model, seed=1, stop_at=1)
    assert result.value == 1  # type: ignore[comparison-overlap]


INTERRUPTED = """
import asyncio, signal
from hive_frontend import BestOfN, agent, gen, run, score
from hive_frontend.testing import FunctionModel

@agent(supervisor=BestOfN(2))
async def program():
    count = 0
    while True:
        await gen("q")
        count += 1
        score(count, count)
        if count == 20:
            print("begun", flush=True)

async def slow(request):
    await asyncio.sleep(0.001)
    return "a"

# Where tests run in the background of a shell, processes ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def notebook():
    return run(program, model=FunctionModel(slow))

result = {start}
print(result.value >= 20, result.best.finished, result.stopped, flush=True)
"""


@pytest.mark.parametrize(
    "start",
    ["run(program, model=FunctionModel(slow))", "asyncio.new_event_loop().run_until_complete(notebook())"],
)
def test_an_interrupt_returns_what_there_is(tmp_path: Path, start: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(INTERRUPTED.format(start=start))
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.communicate(timeout=20)[0].replace("begun\n", "") == "True False True\n"
    finally:
        process.kill()
