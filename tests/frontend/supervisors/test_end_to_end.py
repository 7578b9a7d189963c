"""Supervisors in the real runtime, with a compiled agent and a scripted model; and the example in `searcher`."""

from __future__ import annotations

import inspect
import random
from hashlib import blake2b
from textwrap import dedent
from typing import Any

import pytest
from hive_frontend import (
    ABMCTS,
    MCTS,
    Beam,
    BestOfN,
    Decision,
    Drop,
    Fire,
    Request,
    RunResult,
    Searcher,
    SearchProgress,
    SelfRefine,
    State,
    Supervisor,
    TreeOfThoughts,
    Vote,
    agent,
    arun,
    fail,
    gen,
    run,
    score,
)
from hive_frontend.supervisors import searcher
from hive_frontend.supervisors.state import best_first
from hive_frontend.testing import ScriptedModel

from tests.frontend.supervisors.harness import Step, play


@agent
async def thinker(depth: int) -> str:
    steps = ""
    for _ in range(depth):
        step = await gen(f"After {steps}?", name="think")
        if steps and step == "0":
            fail("zero")
        steps += step
        score(int(await gen(f"rate {step}", name="rate")) + int(step))
    return steps


@agent
async def judge(candidates: list[str]) -> str:
    return await gen(" | ".join(candidates), name="judge")


def digit(request: Request) -> str:
    """A digit that depends on what tells calls apart: the seed of the state, and the number of the sample."""
    return str(blake2b(f"{request.seed} {request.sample}".encode(), digest_size=1).digest()[0] % 10)


def shape(result: RunResult[Any]) -> Any:
    nodes = [(n.id, n.name, n.status, n.score, n.fired, tuple(n.replies)) for n in result.tree.nodes]
    return nodes, result.results, result.states_fired


SUPERVISORS = [
    TreeOfThoughts(branch_at="think", branching=4, breadth=2),
    TreeOfThoughts(branch_at="think", branching=3, order="dfs", threshold=6, limit=3, budget=30),
    BestOfN(9, target=14, batch=3),
    BestOfN(5, at="rate"),
    SelfRefine(at="think", samples=2),
    Beam(at="think", width=3, expand=3),
    MCTS(branch_at="think", simulations=20, branching=4, workers=4),
    MCTS(branch_at="think", simulations=20, widening=(1, 0.5), rollout="value"),
    ABMCTS(branch_at="think", simulations=20, workers=3),
]


@pytest.mark.parametrize("supervisor", SUPERVISORS, ids=repr)
async def test_the_same_seed_gives_the_same_search(supervisor: Supervisor) -> None:
    chaos = random.Random(1)
    calm = await arun(thinker, 3, model=ScriptedModel(digit), seed=8, supervisor=supervisor)
    delayed = ScriptedModel(digit, delay=lambda request: chaos.random() * 0.003)
    hurried = await arun(thinker, 3, model=delayed, seed=8, supervisor=supervisor, max_concurrency=7)
    assert shape(hurried) == shape(calm)
    assert calm.results
    other = await arun(thinker, 3, model=ScriptedModel(digit), seed=9, supervisor=supervisor)
    assert shape(other) != shape(calm)


def test_a_vote_in_the_real_runtime() -> None:
    def answer(request: Request) -> str:
        if request.agent == "judge":
            assert request.text.split(" | ") == ["1\n0", "2\n0", "3\n0"]
            return "1"
        return "0" if request.name == "rate" else str(1 + request.sample)

    model = ScriptedModel(answer)
    vote = TreeOfThoughts(branch_at="think", branching=3, breadth=1, limit=None, select=Vote(judge, votes=3))
    result = run(thinker, 2, model=model, supervisor=vote, seed=1)
    assert sorted(found.value for found in result.results) == ["21", "22", "23"]
    assert len({call.seed for call in model.calls if call.agent == "judge"}) == 3


def test_a_voter_that_fails_abstains() -> None:
    @agent
    async def undecided(candidates: list[str]) -> int:
        await gen("?")
        fail("cannot say")

    vote = TreeOfThoughts(branch_at="think", branching=3, breadth=1, select=Vote(undecided, votes=2))
    result = run(thinker, 1, model=ScriptedModel(lambda request: "1"), supervisor=vote, seed=1)
    assert len(result.results) == 3


def example_of_searcher() -> type[Any]:
    """Return the supervisor in the docstring of the module `searcher`."""
    lines = (inspect.getdoc(searcher) or "").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("    class"))
    end = next(n for n, line in enumerate(lines) if n > start and line and not line.startswith("    "))
    code = dedent("\n".join(lines[start:end])).strip()
    assert len(code.splitlines()) <= 40
    names = {
        "SearchProgress": SearchProgress,
        "Decision": Decision,
        "Drop": Drop,
        "Fire": Fire,
        "Searcher": Searcher,
    }
    space: dict[str, Any] = {**names, "Sequence": list, "State": State, "best_first": best_first}
    exec(code, space)
    return space["Halving"]  # type: ignore[no-any-return]


def test_the_supervisor_in_the_docstring_of_searcher() -> None:
    halving = example_of_searcher()(at="think", starts=8)
    assert repr(halving) == "Halving(at='think', starts=8)"
    played = play(halving, lambda parent, path: Step("think" if len(path) < 5 else "return", path[-1]))
    assert list(played.fired.items()) == [
        ("0", 8), ("0.4", 1), ("0.4.0", 1), ("0.4.0.0", 1), ("0.5", 1), ("0.5.0", 1), ("0.6", 1), ("0.7", 1),
    ]  # fmt: skip
    result = run(thinker, 3, model=ScriptedModel(digit), supervisor=halving, seed=2)
    assert result.tree.nodes[0].fired == 8
