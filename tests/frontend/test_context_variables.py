"""Context variables belong to a branch, as all else that an agent holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from typing import Any

import pytest
from hive_frontend import (
    BestOfN,
    Request,
    Session,
    TreeOfThoughts,
    agent,
    arun,
    choose,
    gather,
    gen,
    run,
    spawn,
    tool,
)
from hive_frontend.testing import FunctionModel

VAR: ContextVar[Any] = ContextVar("VAR")
ECHO = FunctionModel(lambda request: f"{request.text}{request.sample}")


async def later(request: Request) -> str:
    await asyncio.sleep(0.001 * (5 - request.sample))
    return f"{request.text}{request.sample}"


@pytest.fixture(params=[ECHO, FunctionModel(later)], ids=["at once", "later"])
def model(request: pytest.FixtureRequest) -> FunctionModel:
    found: FunctionModel = request.param
    return found


@agent(supervisor=BestOfN(3))
async def program() -> tuple[str, Any]:
    mine = await gen("q")
    VAR.set(mine)
    await gen("r")
    await gen("s")
    return mine, VAR.get()


def test_branches_see_what_they_have_set(model: FunctionModel) -> None:
    pairs = [found.value for found in run(program, model=model).results]
    assert pairs == [("q0", "q0"), ("q1", "q1"), ("q2", "q2")]


async def test_nothing_leaks_out_of_a_run_and_what_was_set_before_is_seen(model: FunctionModel) -> None:
    outer: list[str] = []

    @agent(supervisor=BestOfN(2))
    async def reads() -> list[str]:
        await gen("q")
        seen = list(VAR.get())
        VAR.set([])
        VAR.get().append("mine")
        await gen("r")
        return [*seen, *VAR.get()]

    VAR.set(outer)
    result = await arun(reads, model=model)
    assert [found.value for found in result.results] == [["mine"], ["mine"]], (
        "one that is equal is another list"
    )
    assert VAR.get() is outer
    assert outer == []


def test_a_state_that_is_fired_again_goes_on_with_its_own(model: FunctionModel) -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="step", branching=2, breadth=9, limit=None))
    async def steps() -> str:
        VAR.set("")
        for _ in range(3):
            VAR.set(VAR.get() + (await gen("", name="step")))
        return str(VAR.get())

    values = sorted(found.value for found in run(steps, model=model).results)
    assert values == [f"{a}{b}{c}" for a in "01" for b in "01" for c in "01"]


async def test_tools_and_other_agents_see_them(model: FunctionModel) -> None:
    async def coroutine() -> Any:
        before = VAR.get()
        VAR.set(before + "+tool")
        return before

    @agent
    async def helper() -> Any:
        await gen("h")
        return VAR.get()

    @agent
    async def keeps() -> AsyncGenerator[str, Any]:
        VAR.set("the child's")
        yield str(VAR.get())
        await gen("k")
        yield str(VAR.get())

    @agent(supervisor=BestOfN(2, at="way"))
    async def all_of_them() -> list[Any]:
        way = await choose(["left", "right"], name="way")
        VAR.set(way)
        child = spawn(keeps)
        return [
            await tool(VAR.get),
            await gather(tool(VAR.get), helper()),
            await helper(),
            await child.next(),
            await child.next(),
            await tool(coroutine),
            await tool(VAR.get),
        ]

    found = [result.value for result in (await arun(all_of_them, model=model)).results]
    assert found == [
        [way, [way, way], way, "the child's", "the child's", way, f"{way}+tool"] for way in ("left", "right")
    ]


async def test_one_branch_is_as_an_ordinary_coroutine(model: FunctionModel) -> None:
    async def setting() -> None:
        VAR.set(VAR.get("") + "t")

    @agent
    async def plain() -> list[Any]:
        token = VAR.set("x")
        await tool(setting)
        seen = [VAR.get()]
        await gen("q")
        VAR.reset(token)
        await tool(setting)
        return [*seen, VAR.get()]

    VAR.set("")
    async with Session(model):
        native = await plain()
    assert native == ["xt", "t"]
    VAR.set("")
    assert (await arun(plain, model=model)).value == native
