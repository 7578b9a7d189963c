"""Supervisors: what they fire, what they keep, and that nothing depends on who answers first."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import pytest
from hive_frontend import (
    Agent,
    Decision,
    Drop,
    Fire,
    Once,
    Request,
    RunResult,
    State,
    Supervisor,
    SupervisorError,
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


def pick(request: Request) -> str:
    """A digit that depends on what tells calls apart: the seed of the state, and the number of the sample."""
    return str(blake2b(f"{request.seed} {request.sample}".encode(), digest_size=1).digest()[0] % 10)


@agent(supervisor=TreeOfThoughts(branch_at="propose", branching=4, breadth=2))
async def thinker(depth: int) -> list[str]:
    steps: list[str] = []
    for _ in range(depth):
        step = await gen(f"{steps}", name="propose")
        if step == "0":
            fail("zero")
        steps.append(step)
        votes = await gather(*[gen(f"rate {step}", agent="valuer", name="value") for _ in range(3)])
        score(sum(map(int, votes)))
    return steps


def shape(result: RunResult[Any]) -> list[tuple[Any, ...]]:
    return [(n.id, n.name, n.status, n.score, tuple(n.replies), n.value) for n in result.tree.nodes]


def test_tree_of_thoughts_keeps_the_best_of_each_generation() -> None:
    result = run(thinker, 3, model=ScriptedModel(pick), seed=3)
    generations: dict[int, list[Any]] = {}
    for node in result.tree.nodes:
        if node.name == "propose":
            generations.setdefault(node.id.count("."), []).append(node)
    assert len(min(generations.items())[1]) == 1
    for nodes in generations.values():
        kept = [node for node in nodes if node.status == "expanded"]
        pruned = [node for node in nodes if node.status == "pruned"]
        assert len(kept) == min(2, len(nodes))
        assert all(node.fired == 4 for node in kept)
        assert all(k.score >= p.score for k in kept for p in pruned)
    # Every state with another name is fired once.
    assert {node.fired for node in result.tree.nodes if node.name == "value"} == {1}
    assert result.value == max(result.results, key=lambda found: found.score or 0).value
    assert len(result.results) == sum(node.status == "result" for node in result.tree.nodes)
    dead = [node for node in result.tree.nodes if node.status == "dead"]
    assert all(node.failure == "zero" and node.name == "fail" for node in dead)


@pytest.mark.parametrize("chaos", range(5))
async def test_the_same_seed_gives_the_same_search_whatever_comes_first(chaos: int) -> None:
    order = random.Random(chaos)
    delayed = ScriptedModel(pick, delay=lambda request: order.random() * 0.01)
    calm = await arun(thinker, 3, model=ScriptedModel(pick), seed=11)
    hurried = await arun(thinker, 3, model=delayed, seed=11, max_concurrency=1 + 3 * chaos)
    assert shape(hurried) == shape(calm)
    assert hurried.results == calm.results
    assert hurried.states_fired == calm.states_fired
    assert shape(await arun(thinker, 3, model=delayed, seed=12)) != shape(calm)


def test_ties_and_missing_scores() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="fork", branching=4, breadth=2, limit=None))
    async def program() -> str:
        way = ""
        for _ in range(2):
            step = await gen("q", name="fork")
            way += step
            if step in "23":
                score(1)
        return way

    result = run(program, model=ScriptedModel(lambda request: str(request.sample)))
    # The two with a score beat the two without; equal ones come in the order of their samples.
    assert {found.value[0] for found in result.results} == {"2", "3"}
    assert result.value == "20"


def test_limit_ends_the_search_between_generations() -> None:
    @agent
    async def program() -> str:
        for _ in range(3):
            step = await gen("q", name="fork")
            if step == "1":
                return "early"
        return "late"

    def answer(request: Request) -> str:
        return str(request.sample)

    def search(limit: int | None) -> list[str]:
        supervisor = TreeOfThoughts(branch_at="fork", branching=2, breadth=9, limit=limit)
        return [f.value for f in run(program, model=ScriptedModel(answer), supervisor=supervisor).results]

    assert search(1) == ["early"]
    assert search(2) == ["early"] * 2
    assert search(None) == ["late", "early", "early", "early"]


def test_several_names_to_branch_at() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at=["left", "right"], branching=2, breadth=9, limit=None))
    async def program() -> str:
        way = await gen("q", name="left")
        if way == "0":
            way += await gen("extra", name="right")
        return way + await gen("q", name="right")

    result = run(program, model=ScriptedModel(lambda request: str(request.sample)))
    assert sorted(found.value for found in result.results) == ["000", "001", "010", "011", "10", "11"]


def test_branching_at_an_unknown_state_names_the_known_ones() -> None:
    expected = r"branch_at='prpose' is not a state of agent 'thinker'; its states are propose, value"
    with pytest.raises(SupervisorError, match=expected):
        run(thinker, 1, model=ScriptedModel(pick), supervisor=TreeOfThoughts(branch_at="prpose"))
    with pytest.raises(SupervisorError, match="it has no states"):

        @agent(supervisor=TreeOfThoughts(branch_at="propose"))
        async def program() -> None: ...


@pytest.mark.parametrize(
    "settings",
    [
        {"branch_at": []},
        {"branch_at": "x", "branching": 0},
        {"branch_at": "x", "breadth": -1},
        {"branch_at": "x", "limit": 0},
        {"branch_at": "x", "branching": 1.5},
    ],
)
def test_bad_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(SupervisorError, match="TreeOfThoughts: "):
        TreeOfThoughts(**settings)


class BestOf(Supervisor):
    """A supervisor as a user would write it: n samples of the first state, then straight on."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.todo: list[Decision] = []

    def init(self, states: Sequence[State]) -> None:
        self.todo = [Fire(state, times=self.n) for state in states]

    def fire(self) -> Iterable[Decision]:
        todo, self.todo = self.todo, []
        return todo

    def commit(self, state: State) -> None:
        if state.kind == "waiting":
            self.todo.append(Fire(state))


def test_a_supervisor_of_the_user() -> None:
    settings = BestOf(5)
    for _ in range(2):
        result = run(thinker, 2, model=ScriptedModel(pick), seed=1, supervisor=settings)
        assert len(result.results) + sum(node.status == "dead" for node in result.tree.nodes) == 5
    assert settings.todo == [], "runs work on copies"


def test_firing_again_and_again() -> None:
    class Twice(BestOf):
        def init(self, states: Sequence[State]) -> None:
            (self.root,) = states
            self.todo = [Fire(self.root, last=False)]

        def commit(self, state: State) -> None:
            if self.root.fired < 3:
                self.todo.append(Fire(self.root, last=self.root.fired == 2))

    @agent
    async def program() -> list[str]:
        xs: list[str] = []
        xs.append(await gen("q"))
        return xs

    model = ScriptedModel(lambda request: str(request.sample))
    result = run(program, model=model, supervisor=Twice(1))
    assert [found.value for found in result.results] == [["0"], ["1"], ["2"]]
    assert len({(call.seed, call.sample) for call in model.calls}) == 3


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (lambda state: [Fire(state), Fire(state)], "was fired for the last time, or dropped"),
        (lambda state: [Drop(state), Fire(state)], "was fired for the last time, or dropped"),
        (lambda state: [Fire(state, times=0)], "times must be at least 1"),
        (lambda state: [state], "must return Fire, Drop and Ask decisions"),
    ],
)
def test_supervisors_that_break_the_rules(decision: Any, message: str) -> None:
    class Broken(Once):
        def fire(self) -> Iterable[Decision]:
            return [each for fire in super().fire() for each in decision(fire.state)]

    with pytest.raises(SupervisorError, match=message):
        run(thinker, 1, model=ScriptedModel(pick), supervisor=Broken())


def test_final_states_cannot_be_fired() -> None:
    class Eager(Once):
        def commit(self, state: State) -> None:
            self._ready.append(state)

    with pytest.raises(SupervisorError, match="that state is final"):
        run(thinker, 0, model=ScriptedModel(pick), supervisor=Eager())


def test_settings_show() -> None:
    expected = "TreeOfThoughts(branch_at=('propose',), branching=4, breadth=2, limit=1)"
    assert repr(thinker.supervisor) == expected
    assert repr(Agent(_plain).supervisor) == "Once()"


async def _plain() -> None: ...
