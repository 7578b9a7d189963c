"""Nested functions across awaits and forks: they share variables with their own branch, and with no other."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from hive_frontend import BestOfN, ForkError, Once, Shared, agent, gen, run, tool
from hive_frontend.testing import FunctionModel

NUMBERED = FunctionModel(lambda request: str(request.sample))
FORK = BestOfN(3, at="fork")


def values(program: Any, *args: Any) -> list[Any]:
    return sorted(found.value for found in run(program, *args, model=NUMBERED).results)


def test_nonlocal_variables() -> None:
    @agent(supervisor=FORK)
    async def program() -> tuple[int, str]:
        count, last = 0, ""

        def note(what: str) -> None:
            nonlocal count, last
            count += 1
            last = what

        note(await gen("q", name="fork"))
        note(last + await gen("r"))
        return count, last

    assert values(program) == [(2, "00"), (2, "10"), (2, "20")]
    assert run(program, model=NUMBERED, supervisor=Once()).value == (2, "00")


def test_late_binding_and_inner_scopes() -> None:
    @agent(supervisor=FORK)
    async def program() -> Any:
        kept: list[Callable[[], int]] = []
        k = 1
        for turn in range(2):
            kept.append(lambda: turn)  # noqa: B023
            kept.append(lambda: sum(k for k in [1]) + k)
            await gen("q", name="fork")
        k = 10
        return [each() for each in kept]

    assert set(map(str, values(program))) == {"[1, 11, 1, 11]"}


class Env:
    def __init__(self) -> None:
        self.position = 0


def make_move(env: Env) -> Callable[[int], None]:
    def move(by: int) -> None:
        env.position += by

    return move


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial, lambda f: [f][0], lambda f: {"f": f}["f"]])
def test_tools_that_close_over_an_environment(wrap: Any) -> None:
    @agent(supervisor=FORK)
    async def program() -> int:
        env = Env()
        move = wrap(make_move(env))
        await tool(move, int(await gen("q", name="fork")) + 1)
        await tool(move, 10)
        return env.position

    assert values(program) == [11, 12, 13]


def test_factories_callbacks_and_defaults() -> None:
    @agent(supervisor=FORK)
    async def program() -> Any:
        numbers: defaultdict[str, int] = defaultdict(lambda: len(numbers))
        log: list[str] = []
        stack = ExitStack()
        stack.callback(lambda: log.append("closed"))

        def keep(what: str, kept: list[str] = []) -> list[str]:  # noqa: B006
            kept.append(what)
            return kept

        picked = await gen("q", name="fork")
        numbers[f"a{picked}"], numbers["b"]
        keep(picked)
        await gen("r")
        stack.close()
        return dict(numbers), log, keep("!")

    assert list(map(str, values_by_text(program))) == [
        f"({{'a{n}': 0, 'b': 1}}, ['closed'], ['{n}', '!'])" for n in range(3)
    ]


def values_by_text(program: Any) -> list[str]:
    return sorted(str(found.value) for found in run(program, model=NUMBERED).results)


def test_an_async_helper_that_the_agent_defines() -> None:
    @agent(supervisor=FORK)
    async def program() -> list[str]:
        said: list[str] = []
        turns = [0]

        async def ask(question: str) -> None:
            turns[0] += 1
            said.append(question + await gen(question, name="fork"))

        await ask("a")
        await ask("b")
        return [*said, str(turns[0])]

    found = values(program)
    assert len(found) == 3
    assert all(len(each) == 3 and each[2] == "2" for each in found)


def test_names_of_exceptions_that_a_nested_function_uses() -> None:
    @agent
    async def program() -> Any:
        try:
            raise ValueError("first")
        except ValueError as error:  # noqa: F841

            def tell() -> str:
                return str(error)  # noqa: F821

            await gen("q")
            before = tell()
        try:
            return before, tell()
        except NameError:
            return before, "gone"

    assert run(program, model=NUMBERED).value == ("first", "gone")


counter = {"calls": 0}


def counted(function: Callable[[], str]) -> Callable[[], str]:
    @functools.wraps(function)
    def inner() -> str:
        counter["calls"] += 1
        return function()

    return inner


@counted
def stamp() -> str:
    return "stamp"


made_by_a_factory = make_move(everywhere := Env())


def test_functions_of_modules_stay_the_same() -> None:
    @agent(supervisor=FORK)
    async def program() -> bool:
        tools = [stamp, made_by_a_factory]
        await gen("q", name="fork")
        tools[1](1)
        return tools[0] is stamp and tools[1] is made_by_a_factory

    assert values(program) == [True] * 3
    assert everywhere.position == 3


def test_an_environment_that_cannot_be_copied_is_refused() -> None:
    def make_query(lock: Any) -> Callable[[], bool]:
        return lambda: lock.locked()

    @agent(supervisor=FORK)
    async def program() -> bool:
        query = make_query(threading.Lock())
        await gen("q", name="fork")
        return query()

    with pytest.raises(ForkError, match=r"variable 'query', of type function, .*variable 'lock' of .*lambda"):
        run(program, model=NUMBERED)


def test_shared_variables_that_nested_functions_use() -> None:
    @agent(supervisor=FORK)
    async def program(log: Shared[list[str]]) -> int:
        def note(what: str) -> None:
            log.append(what)

        note(await gen("q", name="fork"))
        return 0

    log: list[str] = []
    run(program, log, model=NUMBERED)
    assert sorted(log) == ["0", "1", "2"]


class Node:
    def __init__(self, after: Node | None) -> None:
        self.after = after


def test_long_linked_lists_fork() -> None:
    @agent(supervisor=FORK)
    async def program() -> int:
        node = None
        for _ in range(20_000):
            node = Node(node)
        await gen("q", name="fork")
        length = 0
        while node is not None:
            node, length = node.after, length + 1
        return length

    assert values(program) == [20_000] * 3
