"""What a hostile reader tried: each of these once gave a wrong answer, hung, or lost something."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hive_frontend import (
    MCTS,
    BestOfN,
    Budget,
    BudgetExceeded,
    Child,
    ChildEnded,
    Completion,
    Dialogue,
    Event,
    ForkError,
    JournalError,
    ModelError,
    Request,
    Session,
    State,
    TreeOfThoughts,
    Vote,
    Workspace,
    agent,
    arun,
    choose,
    fail,
    gather,
    gen,
    run,
    spawn,
    stream,
    tool,
)
from hive_frontend.testing import FunctionModel, ScriptedModel

ECHO = FunctionModel(lambda request: f"{request.text}:{request.sample}")


class Numbers(ScriptedModel):
    """Answers with the number of the call."""

    def __init__(self) -> None:
        super().__init__(lambda request: str(len(self.calls)))


async def agree(program: Any, *args: Any) -> Any:
    """The result of a program, the same natively and compiled."""
    async with Session(ECHO, seed=1):
        native = await program(*args)
    assert (await arun(program, *args, model=ECHO, seed=1)).value == native
    return native


def test_parts_of_nested_gathers_are_different_calls(tmp_path: Path) -> None:
    @agent
    async def leaf(x: str) -> str:
        return await gen(x)

    @agent
    async def program() -> Any:
        return await gather(
            gather(gen("x"), gen("x")), gen("x"), gather(leaf("x"), gather(leaf("x"), leaf("x")))
        )

    model = Numbers()
    first = run(program, model=model, seed=1, checkpoint=tmp_path / "j")
    assert len({(call.state, call.sample) for call in model.calls}) == len(model.calls) == 6
    assert len({call.seed for call in model.calls}) == 6
    assert run(program, replay=tmp_path / "j").value == first.value
    assert len(first.tree.nodes) == len({node.id for node in first.tree.nodes}) == 2 + 3 * 2


def test_model_calls_within_a_tool_are_numbered_after_their_state(tmp_path: Path) -> None:
    async def ask(question: str) -> str:
        return str(await gen(question))

    @agent
    async def program() -> Any:
        return await tool(ask, "a"), await tool(ask, "b")

    file = tmp_path / "j"
    whole = run(program, model=ECHO, seed=1, checkpoint=file)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:4]))
    assert run(program, model=ECHO, checkpoint=file).value == whole.value == ("a:0", "b:0")


async def test_an_exception_ends_a_child() -> None:
    @agent
    async def child(x: str) -> AsyncIterator[str]:
        yield x
        raise ValueError("boom")

    @agent
    async def program() -> list[str]:
        worker: Child[str] = spawn(child, "first")
        out = [await worker.next()]
        for _ in range(2):
            try:
                out.append(await worker.next())
            except (ValueError, ChildEnded) as error:
                out.append(type(error).__name__)
        return [*out, worker.status]

    assert await agree(program) == ["first", "ValueError", "ChildEnded", "ended"]


async def test_a_child_does_one_thing_at_a_time() -> None:
    @agent
    async def child() -> AsyncIterator[str]:
        yield await gen("x")

    @agent
    async def program() -> Any:
        worker = spawn(child)
        return await gather(worker.next(), worker.next())

    with pytest.raises(ValueError, match=r"argument 1 of gather .* same child"):
        await arun(program, model=ECHO)


class Holder(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    workspace: Workspace


async def test_workspaces_fork_wherever_they_are_held() -> None:
    @agent(supervisor=BestOfN(3))
    async def program() -> str:
        holder = Holder(workspace=Workspace())
        holder.workspace.write("a", "")
        number = await choose([1, 2, 3])
        holder.workspace.write("a", holder.workspace.read("a") + str(number))
        await tool(time.sleep, 0.001)
        return holder.workspace.read("a")

    result = await arun(program, model=ECHO)
    assert sorted(found.value for found in result.results) == ["1", "2", "3"]


async def test_a_gather_can_be_awaited_again() -> None:
    @agent
    async def program() -> list[int]:
        both = gather(gen("x"), gen("y"))
        return [len(await both) for _ in range(3)]

    assert await agree(program) == [2, 2, 2]


@pytest.mark.parametrize("seconds", [0.0, 0.05])
async def test_a_gather_that_fails_does_so_in_the_order_of_its_parts(seconds: float) -> None:
    def slow(error: type[Exception], delay: float) -> None:
        time.sleep(delay)
        raise error

    async def later(request: Request) -> str:
        await asyncio.sleep(0.02)
        return "answer"

    @agent
    async def program() -> Any:
        talk = Dialogue().user("x")
        try:
            await gather(gen(talk), tool(slow, KeyError, seconds), tool(slow, ValueError, 0.05 - seconds))
        except (KeyError, ValueError) as error:
            return type(error), len(talk)

    result = await arun(program, model=FunctionModel(later))
    assert result.value == (KeyError, 1), "no dialogue has an answer of a gather that failed"


def test_tools_that_work_in_a_workspace_are_made_again(tmp_path: Path) -> None:
    class Bench:
        def __init__(self) -> None:
            self.workspace = Workspace()

        def simulate(self) -> int:
            self.workspace.write("log", "ran")
            return 1

    @agent
    async def program() -> Any:
        bench, other = Bench(), Workspace()
        await tool(bench.simulate)
        await tool(functools.partial(other.write, "a"), "hello")
        await gen("x")
        return bench.workspace.read("log"), other.read("a")

    first = run(program, model=ECHO, checkpoint=tmp_path / "j")
    assert run(program, replay=tmp_path / "j").value == first.value == ("ran", "hello")


def reward(state: State) -> float:
    return state.score or 0.0


@agent
async def voter(texts: list[str]) -> int:
    return 0


def test_settings_read_the_same_in_every_process() -> None:
    for supervisor in (
        MCTS(branch_at="a", simulations=1, branching=1, reward=reward),
        TreeOfThoughts(branch_at="a", select=Vote(voter, text=lambda state: state.name)),
    ):
        assert " at 0x" not in repr(supervisor)
        assert "test_robustness." in repr(supervisor)


def test_agents_of_one_name_may_take_part(tmp_path: Path) -> None:
    class First:
        @agent
        async def solve(self, x: str) -> str:
            return "A" + await gen(x)

    class Second(First):
        @agent
        async def solve(self, x: str) -> str:
            return "B" + await super().solve(x)

    first = run(Second().solve, "x", model=ECHO, checkpoint=tmp_path / "j")
    assert run(Second().solve, "x", replay=tmp_path / "j").value == first.value == "BAx:0"


def test_what_an_agent_dealt_with_is_dealt_with_again(tmp_path: Path) -> None:
    def refuse(request: Request) -> str:
        if request.text == "bad":
            raise ModelError("refused", status=400)
        return "fine"

    def give_up() -> None:
        fail("no way")

    @agent(supervisor=BestOfN(2, at="way"))
    async def program() -> list[str]:
        out: list[str] = []
        if await choose([1, 2], name="way") == 2:
            await tool(give_up)
        for question in ("good", "bad", "good"):
            try:
                out.append(await gen(question))
            except ModelError as error:
                out.append(f"{error.status}")
        try:
            while True:
                out.append(await gen("more"))
        except BudgetExceeded:
            out.append("spent")
        return out

    file = tmp_path / "j"
    first = run(program, model=FunctionModel(refuse), budget=Budget(calls=5), checkpoint=file)
    assert first.value == ["fine", "400", "fine", "fine", "fine", "spent"]
    assert run(program, replay=file, budget=Budget(calls=5)).results == first.results
    with pytest.raises(ModelError, match="refused"):
        run(voter_that_is_refused, model=FunctionModel(refuse), checkpoint=tmp_path / "k")
    again = run(voter_that_is_refused, model=ECHO, checkpoint=tmp_path / "k")
    assert again.value == "bad:0", "what ended a run is no part of it"


@agent
async def voter_that_is_refused() -> str:
    return await gen("bad")


def test_a_journal_that_does_not_fit_is_no_business_of_the_agent(tmp_path: Path) -> None:
    @agent
    async def program() -> str:
        try:
            await tool(lambda: lambda: 1)
        except Exception:
            return "fallback"
        return "ok"

    assert run(program, model=ECHO).value == "ok"
    with pytest.raises(JournalError):
        run(program, model=ECHO, checkpoint=tmp_path / "j")


def test_nor_is_a_listener_that_fails() -> None:
    @agent
    async def inner() -> str:
        return await gen("x")

    @agent
    async def program() -> str:
        try:
            return await inner()
        except Exception:
            return "swallowed"

    def listen(event: Event) -> None:
        if event.agent == "inner":
            raise RuntimeError("listener")

    with pytest.raises(RuntimeError, match="listener"):
        run(program, model=ECHO, on_event=listen)


def test_slots_come_back_when_a_fork_fails() -> None:
    @agent(supervisor=BestOfN(2))
    async def unforkable() -> Any:
        lock = threading.Lock()
        answer = await gen("q")
        return lock and answer

    @agent
    async def program() -> str:
        with contextlib.suppress(ForkError):
            await unforkable()
        return await gen("z")

    assert run(program, model=ECHO, max_concurrency=1).value == "z:0"


async def test_odd_ends_of_tools_are_raised_not_lost() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    @agent
    async def program() -> list[str]:
        out = []
        for function in (lambda: next(iter([])), cancelled):
            try:
                await tool(function)
            except (RuntimeError, asyncio.CancelledError) as error:
                out.append(type(error).__name__)
        return out

    assert await agree(program) == ["RuntimeError", "CancelledError"]


def test_text_that_is_no_unicode_can_be_kept(tmp_path: Path) -> None:
    @agent
    async def program() -> str:
        return await gen("x")

    model = FunctionModel(lambda request: "a\ud83d")
    first = run(program, model=model, checkpoint=tmp_path / "j", trace=tmp_path / "t")
    assert run(program, replay=tmp_path / "j").value == first.value == "a\ud83d"


async def test_a_stream_that_nobody_reads_tells_what_went_wrong() -> None:
    @agent
    async def program() -> str:
        await gen("x")
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        async with stream(program, model=ECHO):
            await asyncio.sleep(0.01)


async def test_a_registration_that_failed_is_tried_again() -> None:
    class Flaky(ScriptedModel):
        tries = 0

        async def register(self, agent: str, session: str) -> None:
            self.tries += 1
            if self.tries == 1:
                raise ModelError("not yet")

        def answer_now(self, request: Request) -> Completion | None:
            return None

    @agent
    async def program() -> str:
        with contextlib.suppress(ModelError):
            await gen("x")
        return await gen("x")

    model = Flaky({"*": "fine"})
    assert (await arun(program, model=model)).value == "fine"
    assert model.tries == 2
