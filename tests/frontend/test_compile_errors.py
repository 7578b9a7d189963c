"""Everything that the compiler refuses is refused at decoration, all at once, with position and fix."""

from __future__ import annotations

import ast
import asyncio
from textwrap import dedent

import pytest
from hive_frontend import Agent, CompileError, agent, gather, gen
from hive_frontend.compiler import program_of
from hive_frontend.compiler.analysis.checker import _UNSUPPORTED
from hive_frontend.compiler.running.support import WHAT_WORKS

from tests.frontend.oracle import define

REFUSED = {
    "except*": (
        "try:\n        await gen(a)\n    except* ValueError:\n        pass",
        3,
        9,
        "inside try with except*",
    ),
    "except": (
        "try:\n        pass\n    except await gen(a):\n        pass",
        4,
        12,
        "inside the head of an except",
    ),
    "guard": (
        "match a:\n        case 1 if await gen(a):\n            pass",
        3,
        19,
        "inside the guard of a case",
    ),
    "target of for": (
        "for a[await gen(a)] in a:\n        pass",
        2,
        9,
        "inside the target of a for loop",
    ),
    "target of with": (
        "with a as a[await gen(a)]:\n        pass",
        2,
        15,
        "inside the target of a with",
    ),
    "async for": ("async for x in a:\n        pass", 2, 5, "async for"),
    "async with": ("async with a:\n        pass", 2, 5, "async with"),
    "generator expression": (
        "x = sum(await gen(y) for y in a)",
        2,
        12,
        "inside a generator expression",
    ),
    "async comprehension": ("x = [y async for y in a]", 2, 22, "async for"),
    "lambda default": ("x = lambda y=await gen(a): y", 2, 9, "default of a lambda"),
    "nested default": ("def f(y=await gen(a)):\n        pass", 2, 5, "nested definition"),
    "event loops": (
        "await asyncio.sleep(1)",
        2,
        5,
        "an await of asyncio.sleep(), which an agent cannot await",
    ),
    "built-ins": ("x = await print(a)", 2, 9, "an await of print(), which an agent cannot await"),
    "built-in classes": ("x = await int(a)", 2, 9, "an await of int(), which an agent cannot await"),
    "function that is not called": ("await program", 2, 5, "a function that is not called"),
    "constant": ("await 'x'", 2, 5, "something that cannot be awaited"),
    "global": ("global b\n    b = await gen(a)", 2, 5, "global variable"),
    "computed state name": ("await gen(a, name=a)", 2, 23, "not a literal"),
    "bad state name": ("await gen(a, name='two words')", 2, 23, "'two words'"),
    "reserved state name": ("await gen(a, name='return')", 2, 23, "'return'"),
    "forgotten await": ("gen(a)", 2, 5, "not awaited"),
    "locals": ("x = locals()\n    await gen(a)", 2, 9, "locals()"),
    "eval": ("await gen(a)\n    return eval('a')", 3, 12, "eval()"),
    "hidden names": ("_hive_x = await gen(a)", 2, 5, "begins with _hive_"),
    "class that refers to the agent": (
        "class C:\n        def f(self):\n            return a\n    await gen(a)",
        2,
        5,
        "a class whose methods use variables of the agent (a)",
    ),
    "variable of a comprehension": (
        "fs = [(lambda: x, await gen(x)) for x in a]",
        2,
        12,
        "a nested function that uses variables (x) of a comprehension with an await in it",
    ),
    "call for its answer": ("return 'yes' in gen(a) or gen(a)", 2, 21, "not awaited"),
    "call that is tested": ("if not gen(a):\n        pass", 2, 12, "not awaited"),
    "call that is compared": ("if gen(a) == 'yes':\n        pass", 2, 8, "not awaited"),
    "call that is formatted": ("return f'{gen(a)}'", 2, 15, "not awaited"),
    "call that is returned": ("return gen(a)", 2, 12, "not awaited"),
    "call that is looped over": ("for x in gen(a):\n        pass", 2, 14, "not awaited"),
    "call whose answer is not read": ("x = gen(a)", 2, 9, "not awaited"),
    "blocks in blocks": (
        "\n".join(
            ["pass", *(f"{'    ' * n}for x{n} in a:" for n in range(1, 21)), "    " * 21 + "await gen(a)"]
        ),
        None,
        None,
        "too many statically nested blocks",
    ),
}


@pytest.mark.parametrize("construct", REFUSED)
def test_unsupported_constructs(construct: str) -> None:
    body, line, column, message = REFUSED[construct]
    with pytest.raises(CompileError) as caught:
        Agent(define(f"async def program(a):\n    {body}\n", gen=gen, gather=gather, asyncio=asyncio))
    (problem,) = caught.value.problems
    assert message in problem.what
    assert line is None or problem.line == line
    assert column is None or problem.column == column
    assert problem.fix


def test_all_problems_are_reported_together_and_legibly() -> None:
    source = dedent(
        """\
        async def helper():
            async with lock:
                pass

        async def program(größe):
            try:
                x = "äöü", await asyncio.sleep(größe)
            finally:
                await helper()
            global y
        """
    )
    with pytest.raises(CompileError) as caught:
        Agent(define(source, gen=gen, asyncio=asyncio), name="demo")
    filename = caught.value.problems[0].filename
    assert str(caught.value) == dedent(
        f"""\
        agent 'demo' cannot be compiled: 3 problems

        {filename}:7:20: an await of asyncio.sleep(), which an agent cannot await
            x = "äöü", await asyncio.sleep(größe)
                       ^
            fix: {WHAT_WORKS}

        {filename}:10:5: a global variable that the agent assigns to
            global y
            ^
            fix: use a local variable: branches of a search must not share variables that they assign to

        {filename}:2:5: {_UNSUPPORTED[ast.AsyncWith][0]}
            async with lock:
            ^
            fix: {_UNSUPPORTED[ast.AsyncWith][1]}"""
    )


def test_helpers_of_helpers_are_checked_once() -> None:
    source = dedent(
        """\
        async def even(n):
            return n == 0 or await odd(n - 1)

        async def odd(n):
            return n != 0 and await even(n - 1) and await 3

        async def program(n):
            return await even(n), await even(n)
        """
    )
    with pytest.raises(CompileError) as caught:
        program_of(define(source))
    (problem,) = caught.value.problems
    assert (problem.line, problem.what) == (5, "an await of something that cannot be awaited")


@pytest.mark.parametrize("wrong", [lambda: 1, print, 3])
def test_only_coroutine_functions_become_agents(wrong: object) -> None:
    with pytest.raises(TypeError, match="decorates an `async def` function"):
        agent(wrong)  # type: ignore[call-overload]


def test_source_that_is_gone() -> None:
    namespace = {"gen": gen}
    exec("async def program():\n    await gen('q')\n", namespace)
    with pytest.raises(CompileError, match="the source of the function cannot be found"):
        Agent(namespace["program"])  # type: ignore[arg-type]


def test_bad_names_and_supervisors() -> None:
    with pytest.raises(ValueError, match="name of an agent must be 1 to 128 characters"):

        @agent(name="two words")
        async def program() -> None: ...

    with pytest.raises(TypeError, match="supervisor must be a Supervisor, not 'once'"):

        @agent(supervisor="once")  # type: ignore[call-overload]
        async def other() -> None: ...
