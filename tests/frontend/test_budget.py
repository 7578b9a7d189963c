"""Budgets: what may be spent, and what happens then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hive_frontend import (
    Budget,
    BudgetExceeded,
    Completion,
    Request,
    TreeOfThoughts,
    agent,
    arun,
    choose,
    gen,
    run,
    spawn,
)
from hive_frontend.testing import ScriptedModel

FORK = TreeOfThoughts(branch_at="ask", branching=3, breadth=9)


@agent(supervisor=FORK)
async def chatty(turns: int) -> int:
    for turn in range(turns):
        await gen(f"turn {turn}", name="ask")
    return turns


def model() -> ScriptedModel:
    return ScriptedModel(lambda request: Completion("two words", 2))


def test_calls_end_branches_and_results_stay() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="ask", branching=3))
    async def some() -> str:
        short = await gen("q", name="ask") == "a"
        if not short:
            await gen("more")
        return "done"

    scripted = ScriptedModel(lambda request: "a" if request.sample == 0 else "b")
    result = run(some, model=scripted, budget=Budget(calls=4))
    assert len(scripted.calls) == 4
    assert [found.value for found in result.results] == ["done", "done"]
    dead = [node for node in result.tree.nodes if node.status == "dead"]
    assert [node.failure for node in dead] == ["the budget of the run is spent: 4 calls"]


def test_tokens() -> None:
    result = run(chatty, 5, model=model(), budget=Budget(tokens=8))
    assert result.totals.tokens_generated == 8
    assert result.value is None
    assert all("8 tokens" in str(node.failure) for node in result.tree.nodes if node.status == "dead")


async def test_seconds_cut_a_call_off() -> None:
    cancelled = []

    class Slow(ScriptedModel):
        async def complete(self, request: Request, on_text: Any = None) -> Completion:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(request.sample)
                raise
            raise AssertionError

    result = await arun(chatty, 1, model=Slow({}), budget=Budget(seconds=0.05))
    assert sorted(cancelled) == [0, 1, 2]
    assert result.results == ()


def test_an_agent_may_catch_it() -> None:
    @agent
    async def careful() -> str:
        try:
            await gen("one")
            await gen("two")
        except BudgetExceeded as error:
            return str(error)
        return "no"

    assert (
        run(careful, model=model(), budget=Budget(calls=1)).value == "the budget of the run is spent: 1 calls"
    )


def test_children_spend_from_their_own_budget_and_that_of_their_parents() -> None:
    @agent(budget=Budget(calls=2))
    async def helper(calls: int) -> str:
        for _ in range(calls):
            await gen("h")
        return "done"

    @agent
    async def boss() -> list[str]:
        return [await spawn(helper, 2), await spawn(helper, 2)]

    assert run(boss, model=model()).value == ["done", "done"], "each run of an agent has its budget"
    assert run(boss, model=model(), budget=Budget(calls=3)).value is None

    @agent
    async def greedy() -> str:
        try:
            return await spawn(helper, 3)
        except BudgetExceeded as error:
            return str(error)

    assert run(greedy, model=model()).value == "the budget of agent helper is spent: 2 calls"


def test_a_childs_budget_is_for_all_of_its_run() -> None:
    @agent(budget=Budget(calls=2))
    async def yielding() -> AsyncIterator[str]:
        while True:
            yield await gen("k")

    @agent(supervisor=TreeOfThoughts(branch_at="fork", branching=2, limit=None))
    async def boss() -> int:
        child, got = spawn(yielding), 0
        await child.next()
        await choose([1, 2], name="fork")
        try:
            while True:
                await child.next()
                got += 1
        except BudgetExceeded:
            return got

    values = [found.value for found in run(boss, model=model()).results]
    assert values == [1, 1], "each branch goes on with what was left at the fork"


@pytest.mark.parametrize(
    "wrong", [{"calls": -1}, {"tokens": 1.5}, {"seconds": float("nan")}, {"calls": True}]
)
def test_limits_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"budget: {next(iter(wrong))} must be"):
        Budget(**wrong)
