"""Forks: branches share nothing they could change, keep what was shared within a state, and copy no more."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hive_frontend import (
    Dialogue,
    ForkError,
    Once,
    Reply,
    Shared,
    TreeOfThoughts,
    agent,
    arun,
    gen,
    run,
    tool,
)
from hive_frontend.testing import ScriptedModel

FORK = TreeOfThoughts(branch_at="fork", branching=3, breadth=9)
MISSING = object()


def numbered(request: Any) -> str:
    return f"{request.name}{request.sample}"


def test_branches_do_not_see_each_other() -> None:
    @agent(supervisor=FORK)
    async def program() -> tuple[list[Any], bool]:
        xs: list[Any] = ["first"]
        same = xs
        table = {"xs": xs}
        x = await gen("q", name="fork")
        xs.append(x)
        await gen("r", name="then")
        xs.append("last")
        return xs, same is xs and table["xs"] is xs

    result = run(program, model=ScriptedModel(numbered))
    assert [found.value for found in result.results] == [
        (["first", f"fork{n}", "last"], True) for n in range(3)
    ]


def test_loops_fork_with_their_position() -> None:
    @agent(supervisor=FORK)
    async def program() -> list[str]:
        todo = ["a", "b"]
        out = []
        for number, item in enumerate(todo):
            answer = await gen(item, name="fork")
            out.append(f"{number}{item}{answer}")
            if answer == "fork2" and len(todo) < 3:
                todo.append("c")
        return out

    result = run(program, model=ScriptedModel(numbered), supervisor=FORK)
    values = [found.value for found in result.results]
    assert len(values) == 4, "two turns, none of them with a third item"
    assert all(len(value) == 2 for value in values)
    everything = run(
        program,
        model=ScriptedModel(numbered),
        supervisor=TreeOfThoughts(branch_at="fork", branching=3, breadth=99, limit=None),
    )
    lengths = sorted(len(found.value) for found in everything.results)
    assert lengths == [2] * 4 + [3] * 15


def test_bound_methods_act_on_their_own_branch() -> None:
    @agent(supervisor=FORK)
    async def program() -> list[str]:
        xs: list[str] = []
        xs.append(await gen("q", name="fork"))
        return xs

    result = run(program, model=ScriptedModel(numbered))
    assert [found.value for found in result.results] == [["fork0"], ["fork1"], ["fork2"]]


def test_objects_of_outer_names_stay_what_they_are() -> None:
    marker = object()

    @agent(supervisor=FORK)
    async def program() -> tuple[bool, bool]:
        best, mine = MISSING, marker
        await gen("q", name="fork")
        return best is MISSING, mine is marker

    result = run(program, model=ScriptedModel(numbered))
    assert [found.value for found in result.results] == [(True, True)] * 3


def test_arguments_of_the_caller_stay_untouched_by_forks() -> None:
    @agent(supervisor=FORK)
    async def program(xs: list[str]) -> list[str]:
        xs.append(await gen("q", name="fork"))
        return xs

    mine = ["a"]
    result = run(program, mine, model=ScriptedModel(numbered))
    assert mine == ["a"]
    assert result.value == ["a", "fork0"]


def test_a_state_that_fires_once_hands_its_variables_on_uncopied() -> None:
    @agent(supervisor=Once())
    async def program(lock: Any) -> Any:
        await gen("q")
        return lock

    lock = threading.Lock()
    assert run(program, lock, model=ScriptedModel(numbered)).value is lock


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        (threading.Lock(), "_thread.lock", "cannot pickle"),
        ((x for x in "ab"), "generator", "cannot pickle"),
        ([].append, "builtin_function_or_method", "would act on the object of another branch"),
    ],
)
def test_what_cannot_be_copied(value: Any, kind: str, why: str) -> None:
    @agent(supervisor=FORK)
    async def program(thing: Any) -> Any:
        await gen("q", name="fork")
        return thing

    with pytest.raises(ForkError) as caught:
        run(program, value, model=ScriptedModel(numbered))
    message = str(caught.value)
    line = program.graph().node("0").line
    assert f"state 'fork' in line {line} of agent 'program' cannot be forked: variable 'thing'" in message
    assert f"of type {kind}, cannot be copied" in message
    assert why in message
    assert "fix: " in message


def test_a_loop_over_a_generator_says_how_to_write_it() -> None:
    def items() -> Any:
        yield from "ab"

    @agent(supervisor=FORK)
    async def program() -> None:
        for item in items():
            await gen(item, name="fork")

    with pytest.raises(ForkError, match=r"the iterator of the for loop in line \d+, of type generator.*list"):
        run(program, model=ScriptedModel(numbered))


async def test_dialogues_fork_and_take_their_answers() -> None:
    @agent(supervisor=FORK)
    async def program() -> list[tuple[str, str]]:
        talk = Dialogue(system="be brief").user("one?")
        alias = talk
        await gen(talk, name="fork")
        talk.user("two?")
        await gen(alias, name="then")
        return [tuple(message) for message in talk]  # type: ignore[misc]

    result = await arun(program, model=ScriptedModel(numbered))
    assert [found.value for found in result.results] == [
        [
            ("system", "be brief"),
            ("user", "one?"),
            ("assistant", f"fork{n}"),
            ("user", "two?"),
            ("assistant", "then0"),
        ]
        for n in range(3)
    ]


class Connection:
    """A resource that cannot be copied, but whose class knows what a fork of it is."""

    def __init__(self, number: int = 0) -> None:
        self.lock = threading.Lock()
        self.number = number

    def __fork__(self, memo: dict[int, Any]) -> Connection:
        return Connection(self.number + 1)


def test_shared_variables_are_one_for_all_branches() -> None:
    @agent(supervisor=FORK)
    async def program(log: Shared[list[str]], mine: list[str]) -> tuple[list[str], bool]:
        lock: Shared[Any] = threading.Lock()
        nested = {"log": log}
        answer = await gen("q", name="fork")
        log.append(answer)
        mine.append(answer)
        return mine, nested["log"] is log and lock.acquire(blocking=False)

    log: list[str] = []
    result = run(program, log, [], model=ScriptedModel(numbered))
    assert [found.value[0] for found in result.results] == [["fork0"], ["fork1"], ["fork2"]]
    assert sorted(log) == ["fork0", "fork1", "fork2"]
    assert sorted(found.value[1] for found in result.results) == [False, False, True], "one lock for all"


def test_shared_variables_that_only_a_tool_uses_are_shared() -> None:
    @agent(supervisor=FORK)
    async def program(log: Shared[list[str]]) -> str:
        answer = await gen("q", name="fork")
        await tool(list.append, log, answer, name="note")
        return answer

    log: list[str] = []
    run(program, log, model=ScriptedModel(numbered), supervisor=TreeOfThoughts(branch_at="note", branching=2))
    assert log == ["fork0", "fork0"]


def test_classes_say_what_a_fork_of_theirs_is() -> None:
    @agent(supervisor=FORK)
    async def program() -> int:
        pool = [Connection()]
        await gen("q", name="fork")
        return pool[0].number

    assert sorted(found.value for found in run(program, model=ScriptedModel(numbered)).results) == [1, 1, 1]


def test_replies_are_shared_not_copied() -> None:
    import copy
    import pickle

    reply = Reply("text", 3, 1, "stop")
    assert copy.deepcopy([reply, reply])[0] is reply
    assert copy.copy(reply) is reply
    again = pickle.loads(pickle.dumps(reply))
    assert (again, again.tokens_generated, again.tokens_replayed, again.finish_reason) == (
        "text",
        3,
        1,
        "stop",
    )
