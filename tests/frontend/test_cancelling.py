"""Dropping a state cancels what is under way for it, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hive_frontend import (
    Completion,
    Decision,
    Drop,
    Fire,
    Request,
    State,
    Supervisor,
    SupervisorError,
    agent,
    arun,
    choose,
    gen,
    run,
    spawn,
    tool,
)
from hive_frontend.testing import ScriptedModel


class FirstWins(Supervisor):
    """Fires the root's branches at once; the first that is back cancels the others."""

    def init(self, states: Sequence[State]) -> None:
        self._new = list(states)
        self._open: list[State] = []
        self._done = False

    def commit(self, state: State) -> None:
        self._new.append(state)
        self._done |= state.kind == "final"

    def fire(self) -> Iterable[Decision]:
        if self._done:
            dropped, self._open = self._open, []
            yield from map(Drop, (state for state in dropped if state.unfinished))
        new, self._new = self._new, []
        for state in new:
            if state.kind == "waiting":
                self._open.append(state)
                yield Fire(state, times=3 if state.name == "plan" else 1)


class Slow(ScriptedModel):
    """Answers the branch "fast" and never any other."""

    def __init__(self) -> None:
        super().__init__({})
        self.cancelled: list[str] = []

    async def complete(self, request: Request, on_text: Any = None) -> Completion:
        try:
            await asyncio.sleep(0.01 if request.text == "fast" else 60)
        except asyncio.CancelledError:
            assert not self.ended, "requests end before their session"
            self.cancelled.append(request.text)
            raise
        return Completion(request.text, 1)


@agent
async def inner(plan: str) -> str:
    return await gen(plan)


@pytest.mark.parametrize("nested", [False, True])
async def test_the_requests_of_a_dropped_branch_are_cancelled(nested: bool) -> None:
    @agent(supervisor=FirstWins())
    async def program() -> str:
        plan = await choose(["slow", "fast", "slower"], name="plan")
        return await spawn(inner, plan) if nested else await gen(plan)

    model = Slow()
    dropped = []

    def on_event(event: Any) -> None:
        if event.kind == "dropped":
            dropped.append(event.state)

    result = await asyncio.wait_for(arun(program, model=model, on_event=on_event), 5)
    assert [found.value for found in result.results] == ["fast"]
    assert sorted(model.cancelled) == ["slow", "slower"]
    assert dropped == ["0.0", "0.2"]
    assert len(model.ended) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("nested", [False, True])
def test_a_run_ends_when_its_dropped_branches_have_cleaned_up(nested: bool) -> None:
    cleaned = []

    async def simulate(plan: str) -> str:
        try:
            await asyncio.sleep(0.01 if plan == "fast" else 60)
        except asyncio.CancelledError:
            # As of a process that is told to stop. The end of the event loop would cut it short.
            await asyncio.sleep(0.05)
            cleaned.append(plan)
            raise
        return plan

    @agent
    async def simulator(plan: str) -> str:
        return await tool(simulate, plan)

    @agent(supervisor=FirstWins())
    async def program() -> str:
        plan = await choose(["slow", "fast", "slower"], name="plan")
        return await spawn(simulator, plan) if nested else await tool(simulate, plan)

    assert run(program, model=ScriptedModel({})).value == "fast"
    assert sorted(cleaned) == ["slow", "slower"]


async def test_a_run_that_is_cancelled_while_dropped_branches_clean_up_waits_for_them_too() -> None:
    cleaning = asyncio.Event()
    ended = []

    async def simulate(plan: str) -> str:
        try:
            await asyncio.sleep(0.01 if plan == "fast" else 60)
        except asyncio.CancelledError:
            cleaning.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(plan)
        return plan

    @agent(supervisor=FirstWins())
    async def program() -> str:
        plan = await choose(["slow", "fast", "slower"], name="plan")
        return await tool(simulate, plan)

    running = asyncio.create_task(arun(program, model=ScriptedModel({})))
    await asyncio.wait_for(cleaning.wait(), 5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)
    assert sorted(ended) == ["slow", "slower"]


async def test_a_state_that_is_done_with_cannot_be_dropped() -> None:
    class Wrong(FirstWins):
        def fire(self) -> Iterable[Decision]:
            yield from super().fire()
            if self._done:
                yield Drop(self._open[0] if self._open else State((9,), None, score=None, kind="dead"))

    @agent(supervisor=Wrong())
    async def program() -> str:
        return await gen("fast")

    with pytest.raises(SupervisorError, match=r"drops .* is dead"):
        await arun(program, model=Slow())
