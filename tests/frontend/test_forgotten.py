"""What would be silent is told: calls that are not awaited, ends of blocks that do not run, ambiguous words."""

from __future__ import annotations

import functools
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    BestOfN,
    Dialogue,
    ForkError,
    Once,
    TreeOfThoughts,
    agent,
    choose,
    gather,
    gen,
    run,
    score,
    spawn,
    tool,
)
from hive_frontend.compiler import program_of
from hive_frontend.testing import FunctionModel

from tests.frontend.oracle import define

NUMBERED = FunctionModel(lambda request: str(request.sample))
CALLS: list[Callable[[], Any]] = [
    lambda: gen("q"),
    lambda: tool(len, []),
    lambda: choose([1, 2]),
    lambda: gather(gen("q")),
]


@pytest.mark.parametrize("make", CALLS)
@pytest.mark.parametrize(
    "use", [bool, str, format, list, lambda call: call == "yes", lambda call: "yes" in call]
)
def test_a_call_is_not_its_answer(make: Any, use: Any) -> None:
    with pytest.raises(TypeError, match=r"not awaited> has no result yet: write `await`"):
        use(make())


def test_calls_that_are_dropped_warn() -> None:
    @agent
    async def child() -> None:
        await gen("c")

    @agent(supervisor=TreeOfThoughts(branch_at="fork", branching=2, breadth=1))
    async def program() -> Any:
        worker = spawn(child)
        later = [tool(len, "ab"), choose([3])]
        await gen("q", name="fork")
        worker.next()
        await gen("r")
        return await gather(*later)

    with pytest.warns(
        RuntimeWarning, match=r"program: <step\(\.\.\.\), not awaited> is never executed"
    ) as caught:
        assert run(program, model=NUMBERED).value == [2, 3]
    assert len({str(each.message) for each in caught}) == 1
    assert caught[0].filename == __file__


def test_calls_that_are_returned() -> None:
    @agent
    async def program() -> Any:
        calls = [gen("q")]
        await gen("r")
        return calls[0]

    with pytest.raises(TypeError, match="write `return await"):
        run(program, model=NUMBERED)


def test_branches_that_are_given_up_inside_a_block_warn_once() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="fork", branching=4, breadth=1))
    async def program() -> str:
        try:
            answer = await gen("q", name="fork")
            score(float(answer))
            return answer + await gen("r", name="fork")
        finally:
            pass

    with pytest.warns(RuntimeWarning, match="dropped inside a `with` or `try`") as caught:
        run(program, model=NUMBERED)
    assert len(caught) == 1


def test_what_an_agent_holds_stays() -> None:
    @agent
    async def program() -> str:
        directory = tempfile.TemporaryDirectory()
        path = Path(directory.name) / "x"
        path.write_text("kept")
        await gen("q")
        await gen("r")
        return path.read_text()

    assert run(program, model=NUMBERED, supervisor=Once()).value == "kept"
    with pytest.raises(ForkError, match="'directory' is cleaned up once, for all branches"):
        run(program, model=NUMBERED, supervisor=BestOfN(2))


def test_a_temporary_directory_around_an_await_is_refused_where_it_forks() -> None:
    @agent(supervisor=BestOfN(2))
    async def program() -> None:
        with tempfile.TemporaryDirectory():
            await gen("q")

    with pytest.raises(
        ForkError, match=r"of type tempfile.TemporaryDirectory, .*for a directory per branch use a Workspace"
    ):
        run(program, model=NUMBERED)


def test_decorated_functions() -> None:
    def twice(function: Any) -> Any:
        @functools.wraps(function)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs) + await function(*args, **kwargs)

        return inner

    @agent
    @twice
    async def program(x: str) -> str:
        return await gen(x)

    assert run(program, "x", model=NUMBERED).value == "00"
    assert run(program, x="x", model=NUMBERED).value == "00"


def test_parameters_called_like_words_of_run() -> None:
    @agent
    async def program(model: str, seed: int = 1) -> str:
        return f"{model}{seed}"

    assert run(program, "m", 3, model=NUMBERED, seed=5).value == "m3"
    assert run(program, "m", model=NUMBERED).value == "m1"
    with pytest.raises(
        TypeError, match=r"seed= is a parameter of both run and agent program.*by position, or rename"
    ):
        run(program, "m", model=NUMBERED, seed=3)


def test_texts_where_others_belong() -> None:
    with pytest.raises(TypeError, match=r"write Dialogue\(\)\.user\('text'\)"):
        Dialogue("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="temperature must be a number, such as temperature=1, not 'hot'"):
        gen("q", temperature="hot")  # type: ignore[call-overload]


def test_gathers_of_helpers_say_how() -> None:
    async def helper(x: str) -> str:
        return await gen(x) + await gen(x)

    @agent
    async def wrong() -> Any:
        return await gather(helper("a"), helper("b"))

    @agent
    async def right() -> Any:
        return await gather(tool(helper, "a"), tool(helper, "b"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError, match=r"a coroutine of helper.*write tool\(helper, \.\.\.\)"):
            run(wrong, model=NUMBERED)
    assert run(right, model=NUMBERED).value == ["00", "00"]


def test_a_state_has_the_name_of_its_own_call() -> None:
    @agent
    async def program() -> Any:
        inner = await tool(len, await gen("a", name="patch"))
        return await gen("b" + await gen("c", name="draft")), inner

    *named, unnamed = program.graph().state_names
    assert named == ["patch", "len", "draft"]
    assert unnamed.startswith("L")


def test_compile_time_is_linear() -> None:
    def seconds(awaits: int) -> float:
        lines = [f"    if a > {i}:\n        a += await ask('{i}')\n" for i in range(awaits)]
        function = define(f"async def program(a):\n{''.join(lines)}    return a\n")
        began = time.process_time()
        program_of(function)
        return time.process_time() - began

    few, many = min(seconds(40) for _ in range(3)), min(seconds(160) for _ in range(3))
    assert many < 8 * few, "four times the code: four times the time, not sixteen times"


@pytest.mark.parametrize("final", ["n += 1", "n += number(await ask('final'))"])
def test_eight_loops_with_finally_compile(final: str) -> None:
    source = "async def program(a):\n    n = 0\n"
    for depth in range(8):
        source += (
            "        " * depth + f"    for i{depth} in range(1):\n" + "        " * depth + "        try:\n"
        )
    source += "        " * 8 + "    n += number(await ask('x'))\n"
    for depth in reversed(range(8)):
        source += "        " * depth + "        finally:\n" + "        " * depth + f"            {final}\n"
    assert program_of(define(source + "    return n\n")).points
