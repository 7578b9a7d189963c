"""What is no business of the agent's `except Exception`: a spent budget, and an await that no search can do."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest
from hive_frontend import (
    Budget,
    BudgetExceeded,
    HiveError,
    Session,
    agent,
    arun,
    gather,
    gen,
    run,
    spawn,
    tool,
)
from hive_frontend.testing import FunctionModel

ECHO = FunctionModel(lambda request: request.text)


@agent
async def stubborn() -> int:
    while True:
        try:
            return int("x" + await gen("q"))
        except Exception:
            pass


@pytest.mark.parametrize("suspends", [False, True])
def test_a_loop_that_tries_again_ends_with_its_budget(suspends: bool) -> None:
    async def later(request: Any) -> str:
        await asyncio.sleep(0)
        return "a"

    model = FunctionModel(later) if suspends else ECHO
    result = run(stubborn, model=model, budget=Budget(calls=5))
    assert result.totals.requests == 5
    assert result.value is None
    assert result.tree.nodes[-1].failure == "the budget of the run is spent: 5 calls"


async def test_so_does_an_ordinary_coroutine() -> None:
    async with Session(ECHO, budget=Budget(calls=5)):
        with pytest.raises(BudgetExceeded, match="5 calls"):
            await stubborn()


def test_a_tool_that_asks_does_not_swallow_it_either() -> None:
    async def ask() -> str:
        try:
            return str(await gen("q"))
        except Exception:
            return "swallowed"

    @agent
    async def program() -> list[str]:
        return [await tool(ask), await tool(ask)]

    assert run(program, model=ECHO, budget=Budget(calls=1)).value is None


def test_what_holds_the_agent_sees_when_a_childs_budget_is_spent() -> None:
    @agent(budget=Budget(calls=1))
    async def helper() -> None:
        await gather(gen("a"), gen("b"))

    @agent
    async def program() -> str:
        try:
            await spawn(helper)
        except Exception:
            return "swallowed"
        except BudgetExceeded as error:
            return str(error)
        return "no"

    assert run(program, model=ECHO).value == "the budget of agent helper is spent: 1 calls"


class Http:
    async def _do(self) -> str:
        return "data"

    def get(self) -> Any:
        return asyncio.ensure_future(self._do())


async def test_an_await_of_something_foreign_ends_the_run() -> None:
    cleaned: list[str] = []

    @agent
    async def inner(client: Http) -> str:
        try:
            answer: str = await client.get()
        except Exception:
            return "fallback"
        finally:
            cleaned.append("finally")
        return answer

    @agent
    async def outer(client: Http) -> str:
        try:
            return await inner(client)
        except Exception:
            return "fallback"

    async with Session(ECHO):
        assert await inner(Http()) == "data"
    for program in (inner, outer):
        cleaned.clear()
        with pytest.raises(
            HiveError, match=r"the agent awaits <Task .* wrap other awaitables in tool\("
        ) as caught:
            await arun(program, Http(), model=ECHO)
        assert isinstance(caught.value, TypeError)
        assert cleaned == ["finally"]
        assert caught.value.__notes__ == ["raised by agent 'inner' before its first await"]
        lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "answer: str = await client.get()" in lines
