"""Tools and choices."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any

import pytest
from hive_frontend import Session, ToolTimeout, TreeOfThoughts, agent, arun, choose, gather, run, tool
from hive_frontend.testing import ScriptedModel

NOBODY = ScriptedModel({})


async def agree(program: Any, *args: Any) -> Any:
    """The result of a program, the same natively and compiled."""
    async with Session(NOBODY):
        native = await program(*args)
    assert (await arun(program, *args, model=NOBODY)).value == native
    return native


async def test_functions_and_coroutines_are_called_with_their_arguments() -> None:
    async def coroutine(x: int, *, y: int) -> tuple[int, int]:
        await asyncio.sleep(0)
        return x, y

    def function(name: str) -> tuple[str, bool]:
        return name, threading.current_thread() is threading.main_thread()

    @agent
    async def program() -> Any:
        both = await gather(tool(coroutine, 1, y=2), tool(functools.partial(function, name="n")))
        return both, await tool(sorted, [2, 1], reverse=True)

    assert await agree(program) == ([(1, 2), ("n", False)], [2, 1])


async def test_what_a_tool_raises_is_raised_at_the_await() -> None:
    def broken() -> None:
        raise LookupError("nothing")

    @agent
    async def program() -> str:
        try:
            await tool(broken)
        except LookupError as error:
            return f"caught {error}"
        finally:
            await tool(len, "x")
        return "no"

    assert await agree(program) == "caught nothing"


async def test_a_slow_tool_times_out() -> None:
    @agent
    async def program(function: Any) -> str:
        try:
            await tool(function, 0.3, timeout=0.01)
        except ToolTimeout as error:
            return str(error)
        return "no"

    assert await agree(program, asyncio.sleep) == "tool sleep took longer than 0.01 seconds"
    assert await agree(program, time.sleep) == "tool sleep took longer than 0.01 seconds"


async def test_blocking_tools_of_several_branches_run_at_once() -> None:
    together = threading.Barrier(3, timeout=5)

    @agent(supervisor=TreeOfThoughts(branch_at="wait", branching=3, limit=None))
    async def program() -> int:
        return await tool(together.wait, name="wait")

    result = await arun(program, model=NOBODY)
    assert sorted(found.value for found in result.results) == [0, 1, 2]


def test_choices_are_gone_through_in_order() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="pick", branching=4, limit=None))
    async def program() -> str:
        options = [["a"], ["b"], ["c"]]
        picked = await choose(options, name="pick")
        picked.append("!")
        return "".join("".join(option) for option in options)

    values = [found.value for found in run(program, model=NOBODY).results]
    assert values == ["a!bc", "ab!c", "abc!", "a!bc"]


def test_bad_calls_say_what_is_wrong() -> None:
    with pytest.raises(TypeError, match="tool takes a function"):
        tool("ls")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="timeout must be"):
        tool(print, timeout=0)
    with pytest.raises(ValueError, match="at least one option"):
        choose([])
    with pytest.raises(TypeError, match=r"gather takes calls.*argument 1 is a int"):
        gather(tool(print), 3)  # type: ignore[arg-type]
