"""Runs: identity on every call, events, limits, failures, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hive_frontend import (
    BranchFailed,
    Completion,
    Event,
    HiveError,
    ModelError,
    NoModelError,
    Request,
    Session,
    TreeOfThoughts,
    agent,
    arun,
    fail,
    gather,
    gen,
    run,
    score,
)
from hive_frontend.testing import ScriptedModel


@agent(supervisor=TreeOfThoughts(branch_at="ask", branching=2, breadth=1))
async def pair(question: str) -> str:
    answer = await gen(question, name="ask", temperature=0.7)
    votes = await gather(
        gen(f"rate {answer}", agent="judge", sample=5), gen(f"rate {answer}", agent="judge"), name="rate"
    )
    score(len(votes[0]))
    return answer


def test_every_call_says_where_it_comes_from() -> None:
    model = ScriptedModel(lambda request: request.state)
    result = run(pair, "q", model=model, seed=5)
    seen = {(call.agent, call.state, call.sample, call.name) for call in model.calls}
    assert seen == {
        ("pair", "0", 0, "ask"),
        ("pair", "0", 1, "ask"),
        ("judge", "0.0/0", 5, "rate"),
        ("judge", "0.0/1", 0, "rate"),
        ("judge", "0.1/0", 5, "rate"),
        ("judge", "0.1/1", 0, "rate"),
    }
    assert {call.session for call in model.calls} == {result.session} == set(model.ended)
    assert len({(call.seed, call.sample) for call in model.calls}) == 6
    assert len({call.seed for call in model.calls if call.name == "ask"}) == 1, "samples of one state"
    assert all(0 <= call.seed < 2**63 for call in model.calls)
    assert sorted(model.agents) == ["judge", "pair"]
    assert result.seed == 5


def test_totals() -> None:
    def answer(request: Request) -> Completion:
        return Completion(text="x", tokens_generated=3, tokens_replayed=2 if request.sample else 0)

    result = run(pair, "q", model=ScriptedModel(answer))
    totals = result.totals
    assert (totals.requests, totals.tokens_generated, totals.tokens_replayed) == (6, 18, 6)
    assert totals.agents["pair"].requests == 2
    assert totals.agents["judge"].tokens_replayed == 4
    assert totals.wall_s > 0
    assert result.states_fired == 4
    assert sum(node.tokens_generated for node in result.tree.nodes) == 18


def test_seeds_that_are_drawn_can_be_used_again() -> None:
    model = ScriptedModel(lambda request: str(request.seed))
    first = run(pair, "q", model=model)
    assert run(pair, "q", model=model, seed=first.seed).value == first.value


def test_events_tell_the_story() -> None:
    events: list[Event] = []
    run(pair, "q", model=ScriptedModel(lambda request: "w" * (1 + request.sample)), on_event=events.append)
    kinds = [event.kind for event in events]
    assert kinds[0] == "committed"
    assert kinds[-1] == "finished"
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "committed": 3,
        "fired": 4,
        "final": 2,
        "finished": 1,
    }
    final = [event for event in events if event.kind == "final"][-1]
    assert (final.name, final.detail, final.score) == ("return", "'ww'", 6.0)
    last = events[-1].progress
    assert (last.fired, last.alive, last.dead, last.results, last.best_score) == (4, 0, 0, 2, 6.0)
    assert last.requests == 6
    assert last.tokens_generated == 6


async def test_at_most_max_concurrency_transitions_run_at_once() -> None:
    running = peak = 0

    class Counting(ScriptedModel):
        async def complete(self, request: Request, on_text: Any = None) -> Completion:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0.001)
            running -= 1
            return await super().complete(request, on_text)

    @agent(supervisor=TreeOfThoughts(branch_at="ask", branching=12))
    async def program() -> str:
        return await gen("q", name="ask")

    result = await arun(program, model=Counting({"*": "a"}), max_concurrency=3)
    assert peak == 3
    assert len(result.results) == 12


async def test_an_exception_ends_the_run_and_cancels_the_rest() -> None:
    cancelled = []

    class Slow(ScriptedModel):
        async def complete(self, request: Request, on_text: Any = None) -> Completion:
            if request.sample == 0:
                return await super().complete(request, on_text)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(request.sample)
                raise
            raise AssertionError

    @agent(supervisor=TreeOfThoughts(branch_at="ask", branching=3))
    async def program() -> int:
        return int(await gen("q", name="ask"))

    model = Slow({"*": "no number"})
    with pytest.raises(ValueError, match="no number"):
        await arun(program, model=model)
    assert sorted(cancelled) == [1, 2]
    assert len(model.ended) == 1, "the session ends all the same"


async def test_a_refused_call_cancels_its_companions_in_a_gather() -> None:
    cancelled = []

    class Picky(ScriptedModel):
        async def complete(self, request: Request, on_text: Any = None) -> Completion:
            if request.text == "bad":
                raise ModelError("refused", status=400)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(request.text)
                raise
            raise AssertionError

    @agent
    async def program() -> None:
        await gather(gen("bad"), gen("good"))

    with pytest.raises(ModelError, match="refused"):
        await arun(program, model=Picky([]))
    assert cancelled == ["good"]


async def test_cancelling_a_run_cancels_its_calls() -> None:
    both = asyncio.Event()

    class Stuck(ScriptedModel):
        async def complete(self, request: Request, on_text: Any = None) -> Completion:
            await super().complete(request, on_text)
            if len(self.calls) == 2:
                both.set()
            await asyncio.sleep(60)
            raise AssertionError

    model = Stuck({"*": "x"})
    task = asyncio.create_task(arun(pair, "q", model=model))
    await both.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1


def test_a_search_in_which_every_branch_fails() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="ask", branching=2))
    async def program() -> str:
        fail(await gen("q", name="ask"))

    result = run(program, model=ScriptedModel({"ask": ["a", "b"]}))
    assert result.best is None
    assert result.value is None
    assert result.tree.best is None
    assert [node.failure for node in result.tree.nodes] == [None, "a", "b"]


def test_fail_is_not_caught_by_except_exception() -> None:
    @agent
    async def program() -> str:
        await gen("q")
        try:
            fail("no")
        except Exception:
            return "caught"

    assert run(program, model=ScriptedModel({"*": "a"})).best is None


async def test_run_works_where_a_loop_is_running() -> None:
    assert run(pair, "q", model=ScriptedModel({"*": "a"})).value == "a"


async def test_agents_as_ordinary_coroutines() -> None:
    model = ScriptedModel(lambda request: f"{request.agent}:{request.state}:{request.name}")

    @agent
    async def outer() -> list[str]:
        first = await gen("q", name="ask")
        return [first, await gen("r")]

    async with Session(model, seed=1) as session:
        assert await outer() == ["outer:0:ask", "outer:0.0:None"]
        assert await outer() == ["outer:1:ask", "outer:1.0:None"]
        assert await gen("s") == "main:2:None"
        with pytest.raises(BranchFailed, match="why"):
            fail("why")
    assert session.totals.requests == 5
    assert model.ended == [session.id]
    with pytest.raises(HiveError, match="entered once"):
        async with session:
            pass


async def test_calls_outside_a_run() -> None:
    with pytest.raises(NoModelError, match="outside a run"):
        await gen("q")
    with pytest.raises(NoModelError, match="outside a run"):
        await pair("q")
    with pytest.raises(HiveError, match=r"score\(\) was called outside a run"):
        score(1)


@pytest.mark.parametrize("value", ["high", None])
def test_scores_are_numbers(value: Any) -> None:
    @agent
    async def program() -> None:
        score(value)

    with pytest.raises(TypeError, match=r"score\(\) takes a number"):
        run(program, model=ScriptedModel([]))


def test_nan_is_no_score() -> None:
    @agent
    async def program() -> None:
        score(float("nan"))

    with pytest.raises(ValueError, match="cannot be NaN"):
        run(program, model=ScriptedModel([]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, NoModelError, "needs a model"),
        ({"model": 3}, TypeError, "model must be a Client or the URL"),
        ({"model": "localhost:30000"}, ValueError, "the URL of a server must look like"),
        ({"model": ScriptedModel([]), "max_concurrency": 0}, ValueError, "max_concurrency must be"),
        ({"model": ScriptedModel([]), "seed": "1"}, TypeError, "seed must be an integer"),
        ({"model": ScriptedModel([]), "supervisor": "tot"}, TypeError, "supervisor must be a Supervisor"),
        ({"model": ScriptedModel([]), "modle": 1}, TypeError, "unexpected keyword argument 'modle'"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(pair, "q", **options)
    with pytest.raises(TypeError, match="takes an @agent function"):
        run(print, model=ScriptedModel([]))  # type: ignore[arg-type]


def test_very_deep_searches_keep_ids_that_servers_accept() -> None:
    @agent
    async def program() -> int:
        n = 0
        while n < 150:
            await gen("q")
            n += 1
        return n

    model = ScriptedModel({"*": "x"})
    result = run(program, model=model)
    assert result.value == 150
    assert max(len(call.state) for call in model.calls) <= 128
    assert len({call.state for call in model.calls}) == 150
    assert len(result.tree.path_to(result.tree.best or "")) == 151
