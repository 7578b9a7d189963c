"""Features that meet: tools that ask people, forks of tool results, early ends in stores, offers in children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    BestOfN,
    HiveError,
    Question,
    RunStore,
    act,
    agent,
    arun,
    ask_human,
    evaluate,
    gen,
    run,
    score,
    spawn,
)
from hive_frontend.testing import FunctionModel, call


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs.db")


@agent
async def permission(what: str) -> str:
    """Ask whether something is allowed."""
    return await ask_human(f"May I {what}?")


@agent
async def worker() -> str:
    return await act("Work.", tools=[permission])


def worker_model() -> FunctionModel:
    return FunctionModel(
        lambda request: "gone" if request.messages[-1].role == "tool" else call("permission", what="go")
    )


def test_nobody_to_ask_is_no_news_for_the_model() -> None:
    with pytest.raises(HiveError, match="nobody can answer 'May I go"):
        run(worker, model=worker_model())


def test_a_forked_result_of_a_tool_is_text_for_the_model(store: RunStore) -> None:
    model = FunctionModel(
        lambda request: "done" if request.messages[-1].role == "tool" else call("look", at="x")
    )

    def look(at: str) -> str:
        """Look at something."""
        return at

    @agent
    async def looker() -> str:
        answer = await act("Look.", tools=[look])
        return f"{answer}"

    assert run(looker, model=model, store=store, run_id="one").value == "done"
    (tool,) = [answer for answer in store.history("one") if answer.kind == "tool"]
    store.fork("one", tool.at, {"x": 1}, run_id="two")
    result = run(looker, model=model, store=store, run_id="two")
    assert result.value == "done"
    assert [node.results for node in result.tree.nodes if node.results] == [['{"x":1}']]


@agent(supervisor=BestOfN(3, at="draft"))
async def reviewed() -> str:
    text = await gen("Write.", name="draft")
    score(int(text))
    if text == "1":
        return await ask_human("Really?")
    return text


def test_a_run_that_stops_early_keeps_its_questions(store: RunStore) -> None:
    model = FunctionModel(lambda request: str(request.sample))
    first = run(reviewed, model=model, store=store, run_id="r", max_concurrency=1)
    assert [question.text for question in first.questions] == ["Really?"]
    again = run(reviewed, model=model, store=store, run_id="r", stop_at=2, max_concurrency=1)
    assert again.stopped
    assert store.get("r").status == "waiting"
    store.answer("r", first.questions[0].at, "yes")
    last = run(reviewed, model=model, store=store, run_id="r", max_concurrency=1)
    assert {found.value for found in last.results} == {"0", "2", "yes"}
    assert store.get("r").status == "finished"


def test_an_evaluation_does_not_score_a_run_that_waits(store: RunStore) -> None:
    async def program(question: str) -> Any:
        return await arun(worker, model=worker_model(), store=store, run_id=question)

    report = evaluate(program, ["one"], lambda item, result: True)
    (case,) = report.cases
    assert case.error is not None
    assert "waits for people, who are asked 'May I go?'" in case.error
    store.answer("one", store.get("one").questions[0].at, "yes")
    assert evaluate(program, ["one"], lambda item, result: True).cases[0].error is None


def test_an_offer_does_not_end_a_child_that_yields() -> None:
    @agent
    async def child() -> Any:
        score(9, "offer")
        answer = await gen("a")
        score(1)
        yield answer

    @agent
    async def parent() -> str:
        return await spawn(child).next()

    assert run(parent, model=FunctionModel(lambda request: "w")).value == "w"


def test_stop_at_is_a_setting_of_run() -> None:
    @agent
    async def mine(stop_at: int = 3) -> int:
        return stop_at

    with pytest.raises(TypeError, match="stop_at"):
        run(mine, model=FunctionModel(lambda request: ""), stop_at=1)


def test_a_notebook_says_why_there_is_no_result(store: RunStore) -> None:
    result = run(worker, model=worker_model(), store=store, run_id="r")
    assert isinstance(result.questions[0], Question)
    assert "no result: it waits for people" in result._repr_html_()


EVALUATION = """
import asyncio, sys
from hive_frontend import evaluate
from hive_frontend.testing import FunctionModel
from hive_frontend import agent, gen

@agent
async def slow(item: str) -> str:
    return await gen(item)

async def answer(request):
    print("asked", flush=True)
    await asyncio.sleep(60)
    return "x"

evaluate(slow, ["a", "b", "c"], lambda item, result: True, model=FunctionModel(answer), concurrency=1)
"""


def test_an_interrupt_ends_an_evaluation(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + EVALUATION
    )
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    os.kill(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert out == ""
    assert error.rstrip().endswith("KeyboardInterrupt"), textwrap.shorten(error, 2000)
