"""Everything that the compiler refuses is refused at decoration, all at once, with position and fix."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hive_frontend import Agent, CompileError, agent, gen

from tests.frontend.oracle import define

REFUSED = {
    "try": ("try:\n        x = await gen(a)\n    except ValueError:\n        pass", 3, 13, "inside try"),
    "with": ("with open(a) as f:\n        await gen(a)", 3, 9, "inside with"),
    "match": ("match a:\n        case 1:\n            await gen(a)", 4, 13, "inside match"),
    "assert": ("assert await gen(a)", 2, 12, "inside assert"),
    "raise": ("raise ValueError(await gen(a))", 2, 22, "inside raise"),
    "del": ("del a[await gen(a)]", 2, 11, "inside del"),
    "async for": ("async for x in a:\n        pass", 2, 5, "async for"),
    "async with": ("async with a:\n        pass", 2, 5, "async with"),
    "comprehension": ("x = [await gen(y) for y in a]", 2, 9, "inside a comprehension"),
    "async comprehension": ("x = [y async for y in a]", 2, 9, "inside a comprehension"),
    "target": ("a[await gen(a)] = 1", 2, 5, "assignment target"),
    "augmented target": ("a[await gen(a)] += 1", 2, 5, "assignment target"),
    "chained comparison": ("x = 1 < a < int(await gen(a))", 2, 9, "chained comparison"),
    "format specification": ("x = f'{a:{await gen(a)}}'", 2, None, "format specification"),
    "lambda default": ("x = lambda y=await gen(a): y", 2, 9, "default of a lambda"),
    "nested default": ("def f(y=await gen(a)):\n        pass", 2, 5, "nested definition"),
    "while with else": ("while await gen(a):\n        pass\n    else:\n        pass", 2, 11, "has an else"),
    "other awaitables": ("await a", 2, 5, "something else than a call of gen"),
    "other calls": ("await a.gen('x')", 2, 5, "something else than a call of gen"),
    "global": ("global b\n    b = await gen(a)", 2, 5, "global variable"),
    "computed state name": ("await gen(a, name=a)", 2, 23, "not a literal"),
    "bad state name": ("await gen(a, name='two words')", 2, 23, "'two words'"),
    "reserved state name": ("await gen(a, name='return')", 2, 23, "'return'"),
    "forgotten await": ("gen(a)", 2, 5, "not awaited"),
    "locals": ("x = locals()\n    await gen(a)", 2, 9, "locals()"),
    "eval": ("await gen(a)\n    return eval('a')", 3, 12, "eval()"),
    "hidden names": ("_hive_x = await gen(a)", 2, 5, "begins with _hive_"),
    "kept function": (
        "def f():\n        return a\n    await gen(a)\n    return f()",
        2,
        5,
        "kept across an await",
    ),
    "kept lambda": ("fs = {1: lambda: a}\n    await gen(a)\n    return fs", 2, 14, "kept across an await"),
    "stored lambda": ("b = {}\n    b[1] = lambda: a\n    await gen(a)\n    return b", 3, 12, "kept across"),
    "kept generator": (
        "for x in map(str, (y * a for y in 'ab')):\n        await gen(x)",
        2,
        23,
        "the iterator of the for loop in line 2",
    ),
}


@pytest.mark.parametrize("construct", REFUSED)
def test_unsupported_constructs(construct: str) -> None:
    body, line, column, message = REFUSED[construct]
    with pytest.raises(CompileError) as caught:
        Agent(define(f"async def program(a):\n    {body}\n"))
    (problem,) = caught.value.problems
    assert message in problem.what
    assert problem.line == line
    assert column is None or problem.column == column
    assert problem.fix


def test_all_problems_are_reported_together_and_legibly() -> None:
    source = dedent(
        """\
        async def program(größe):
            try:
                x = await gen("q")
            finally:
                pass
            y = "äöü", await größe
        """
    )
    with pytest.raises(CompileError) as caught:
        Agent(define(source), name="demo")
    filename = caught.value.problems[0].filename
    assert str(caught.value) == dedent(
        f"""\
        agent 'demo' cannot be compiled: 2 problems

        {filename}:3:13: an await inside try
            x = await gen("q")
                ^
            fix: move the await before or after this statement and keep only its result in here

        {filename}:6:16: an await of something else than a call of gen or gather
            y = "äöü", await größe
                       ^
            fix: await gen(...) or gather(...) itself; call plain functions without await"""
    )


@pytest.mark.parametrize("wrong", [lambda: 1, print, 3])
def test_only_coroutine_functions_become_agents(wrong: object) -> None:
    with pytest.raises(TypeError, match="goes on an `async def` function"):
        agent(wrong)  # type: ignore[call-overload]


def test_async_generators_are_refused() -> None:
    async def generator():  # type: ignore[no-untyped-def]
        yield 1

    with pytest.raises(TypeError, match="an async generator"):
        agent(generator)


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
