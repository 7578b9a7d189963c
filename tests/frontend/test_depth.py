"""Branches of many states: time and room grow with their number, and seeds and ids are those of the whole path."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
from hive_frontend import BestOfN, Once, Session, State, Supervisor, agent, gen, run, tool
from hive_frontend.operations.identity import call_seed, state_id
from hive_frontend.testing import FunctionModel

DEPTH = 5000


def model() -> FunctionModel:
    return FunctionModel(lambda request: "a word")


@agent
async def long(turns: int) -> int:
    for _ in range(turns):
        await gen("q", name="turn")
    return turns


@pytest.mark.parametrize("supervisor", [Once(), BestOfN(1)])
def test_five_thousand_states_take_less_than_two_seconds(supervisor: Supervisor) -> None:
    began = time.process_time()
    result = run(long, DEPTH, model=model(), seed=1, supervisor=supervisor)
    assert len(result.tree.nodes) == DEPTH + 1
    assert time.process_time() - began < 2


def test_and_little_memory() -> None:
    tracemalloc.start()
    try:
        run(long, DEPTH, model=FunctionModel(lambda request: "a"), seed=1)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()


@agent(supervisor=BestOfN(2))
async def helper(question: str) -> str:
    return await gen(question, agent="helper") + await gen("more", agent="helper")


async def ask(question: str) -> str:
    return str(await gen(question, agent="tool"))


@agent
async def mixed(turns: int) -> list[Any]:
    found: list[Any] = []
    for turn in range(turns):
        found.append(await gen("q", name="turn"))
        if turn in (5, 28, 100):
            found += [await helper("h"), await tool(ask, "t")]
    return found


def test_ids_and_seeds_are_those_of_whole_paths() -> None:
    reached: list[State] = []

    class Noting(Once):
        def commit(self, state: State) -> None:
            reached.append(state)
            super().commit(state)

        def __deepcopy__(self, memo: dict[int, Any]) -> Noting:
            return self

    asked = model()
    result = run(mixed, 150, model=asked, seed=7, supervisor=Noting())
    paths = {state_id(state.path): state.path for state in reached}
    assert [len(state.path) for state in reached] == list(range(1, len(reached) + 1))
    assert [state.id for state in reached] == list(paths)
    for call in asked.calls:
        if call.agent == "mixed":
            assert call.seed == call_seed(7, paths[call.state], "0")
    inner = {
        state_id((*path, 0, -1, *steps)): (*path, 0, -1, *steps)
        for path in paths.values()
        for steps in ((), (0,), (1,))
    }
    others = [call for call in asked.calls if call.agent != "mixed"]
    assert len(others) == 3 * (4 + 1)
    for call in others:
        assert call.seed == call_seed(7, inner[call.state], "0")
    order = [node.id for node in result.tree.nodes]
    known = {**paths, **inner, **{state_id((*p, 0)): (*p, 0) for p in inner.values()}}
    assert order == sorted(order, key=lambda id: known[id])


async def test_an_ordinary_coroutine_has_the_same_ids_and_seeds() -> None:
    native, compiled = model(), model()
    async with Session(native, seed=3):
        await mixed(80)
    run(mixed, 80, model=compiled, seed=3)

    def calls(of: FunctionModel) -> list[tuple[str, int]]:
        return [(call.state, call.seed) for call in of.calls if call.agent == "mixed"]

    assert calls(native) == calls(compiled)
