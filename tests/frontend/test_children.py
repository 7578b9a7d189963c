"""Agents that work for agents: spawn, next, resume, awaiting, and what forks make of them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hive_frontend import (
    BranchFailed,
    Child,
    ChildEnded,
    HiveError,
    Request,
    Session,
    State,
    TreeOfThoughts,
    agent,
    arun,
    choose,
    fail,
    gather,
    gen,
    run,
    score,
    spawn,
)
from hive_frontend.testing import ScriptedModel


def answer(request: Request) -> str:
    return f"{request.text}/{request.sample}"


@agent
async def gatherer(topic: str) -> AsyncIterator[str]:
    seen: list[str] = []
    for turn in range(3):
        found = await gen(f"{topic}{turn}", name="look")
        patch = yield found
        seen.append(str(patch))
    yield ",".join(seen)


@agent
async def fixer() -> list[str]:
    child = spawn(gatherer, "bug")
    out = []
    for _ in range(2):
        code = await child.next()
        patch = await gen(f"fix {code}", name="patch")
        out.append(patch)
        await child.resume(patch)
    out.append(await child.next())
    await child.resume("last")
    out.append(await child.next())
    return out


async def natively(program: Any, *args: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    model = ScriptedModel(answer)
    async with Session(model, seed=3):
        value = await program(*args)
    return value, calls_of(model)


async def compiled(program: Any, *args: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    model = ScriptedModel(answer)
    result = await arun(program, *args, model=model, seed=3)
    return result.value, calls_of(model)


def calls_of(model: ScriptedModel) -> list[tuple[Any, ...]]:
    return [(call.text, call.agent, call.state, call.sample, call.seed, call.name) for call in model.calls]


async def test_next_and_resume_alternate() -> None:
    value, calls = await compiled(fixer)
    assert value == [
        "fix bug0/0/0",
        "fix bug1/0/0",
        "bug2/0",
        "fix bug0/0/0,fix bug1/0/0,last",
    ]
    assert [(text, who) for text, who, *_ in calls] == [
        ("bug0", "gatherer"),
        ("fix bug0/0", "fixer"),
        ("bug1", "gatherer"),
        ("fix bug1/0", "fixer"),
        ("bug2", "gatherer"),
    ]
    assert len({state for _, _, state, *_ in calls}) == 5


async def test_native_and_compiled_runs_make_the_same_calls() -> None:
    @agent
    async def helper(x: str) -> str:
        return await gen(f"help {x}")

    @agent
    async def program() -> Any:
        first = await helper("a")
        child = spawn(helper, "b")
        both = await gather(child, helper("c"), gen("d"), name="all")
        return first, both, await spawn(gatherer, "t")

    assert await compiled(fixer) == await natively(fixer)
    assert sorted((await compiled(program))[1]) == sorted((await natively(program))[1])
    assert (await compiled(program))[0] == (await natively(program))[0]


async def test_a_child_forks_with_its_parent() -> None:
    @agent
    async def counter(log: list[str]) -> AsyncIterator[int]:
        total = 0
        while True:
            step = yield total
            log.append(f"+{step}")
            total += step

    @agent(supervisor=TreeOfThoughts(branch_at="step", branching=2, breadth=99, limit=None))
    async def program() -> Any:
        log: list[str] = []
        child = spawn(counter, log)
        await child.next()
        for _ in range(2):
            step = await choose([1, 10], name="step")
            await child.resume(step)
            total = await child.next()
        return total, log

    result = await arun(program, model=ScriptedModel({}))
    assert sorted(found.value for found in result.results) == [
        (2, ["+1", "+1"]),
        (11, ["+1", "+10"]),
        (11, ["+10", "+1"]),
        (20, ["+10", "+10"]),
    ], "what parent and child share is shared within each branch, and with no other"


async def test_a_childs_own_supervisor_searches_and_the_best_branch_continues() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="idea", branching=3, breadth=3, limit=None))
    async def thinker(question: str) -> str:
        idea = await gen(question, name="idea")
        if idea.endswith("2"):
            fail("no")
        score(int(idea[-1]))
        return idea

    @agent
    async def program() -> str:
        return "best: " + await thinker("q")

    result = await arun(program, model=ScriptedModel(answer))
    assert result.value == "best: q/1"
    nodes = {node.id: node for node in result.tree.nodes}
    inner = [node for node in nodes.values() if node.agent == "thinker"]
    assert [node.status for node in inner] == ["expanded", "returned", "returned", "dead"]
    assert nodes[inner[0].parent or ""].agent == "program"
    assert result.totals.agents["thinker"].requests == 3


async def test_a_child_that_fails_in_all_branches_fails_its_parent() -> None:
    @agent
    async def hopeless() -> str:
        fail("nothing to find")

    @agent
    async def program() -> str:
        return await spawn(hopeless)

    result = await arun(program, model=ScriptedModel({}))
    assert result.value is None
    assert [node.failure for node in result.tree.nodes if node.agent == "program"][-1] == (
        "agent hopeless: nothing to find"
    )
    async with Session(ScriptedModel({})):
        with pytest.raises(BranchFailed, match="nothing to find"):
            await program()


async def test_exceptions_of_a_child_are_raised_where_it_is_awaited() -> None:
    @agent
    async def broken() -> int:
        await gen("q")
        return 1 // 0

    @agent
    async def program() -> str:
        child = spawn(broken)
        try:
            await child
        except ZeroDivisionError as error:
            return str(error)
        return "no"

    assert (await compiled(program))[0] == (await natively(program))[0]


async def test_an_ended_child_says_so() -> None:
    @agent
    async def brief() -> AsyncIterator[str]:
        yield "only"

    @agent
    async def program() -> Any:
        child: Child[str] = spawn(brief)
        first = await child.next()
        told = []
        for step in (child.next, functools.partial(child.resume, 1)):
            try:
                await step()
            except ChildEnded as error:
                told.append(str(error))
        return first, child.result, child.status, len(told)

    assert (await compiled(program))[0] == ("only", "only", "ended", 2) == (await natively(program))[0]


async def test_resume_needs_a_value_that_was_taken() -> None:
    @agent
    async def program() -> None:
        await spawn(gatherer, "x").resume("early")

    with pytest.raises(HiveError, match=r"is not waiting for a value: await next\(\) first"):
        await compiled(program)


async def test_children_run_at_once_in_a_gather() -> None:
    running = peak = 0

    class Counting(ScriptedModel):
        async def complete(self, request: Request, on_text: Any = None) -> Any:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0.01)
            running -= 1
            return await super().complete(request, on_text)

    @agent
    async def program() -> list[str]:
        return await gather(*[spawn(gatherer, f"t{n}").next() for n in range(4)])

    result = await arun(program, model=Counting(answer))
    assert result.value == [f"t{n}0/0" for n in range(4)]
    assert peak == 4
    peak = 0
    await arun(program, model=Counting(answer), max_concurrency=2)
    assert peak == 2, "sleeping parents take no slots, their children do"


async def test_supervisors_hear_of_awakened_states() -> None:
    woken: list[str] = []

    class Listening(TreeOfThoughts):
        def wake(self, state: State) -> None:
            woken.append(state.name)

    @agent(supervisor=Listening(branch_at="patch", branching=1))
    async def program() -> str:
        child = spawn(gatherer, "x")
        code = await child.next()
        return await gen(code, name="patch")

    await arun(program, model=ScriptedModel(answer))
    assert len(woken) == 1


async def test_agents_can_be_methods() -> None:
    class Team:
        def __init__(self) -> None:
            self.log: list[str] = []

        @agent(supervisor=TreeOfThoughts(branch_at="ask", branching=2, limit=None))
        async def ask(self, question: str) -> tuple[str, list[str]]:
            self.log.append(await gen(question, name="ask"))
            return await self.polish(), self.log

        @agent
        async def polish(self) -> str:
            return await gen(f"polish {self.log[-1]}")

    team = Team()
    result = await arun(team.ask, "q", model=ScriptedModel(answer))
    assert [found.value for found in result.results] == [
        ("polish q/0/0", ["q/0"]),
        ("polish q/1/0", ["q/1"]),
    ]
    assert team.log == []
    assert (await natively(team.ask, "q"))[0] == ("polish q/0/0", ["q/0"])


def test_what_can_be_spawned() -> None:
    with pytest.raises(TypeError, match="spawn takes an @agent"):
        spawn(print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"agent gatherer.*missing"):
        spawn(gatherer)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="async generator"):
        run(gatherer, "x", model=ScriptedModel({}))
