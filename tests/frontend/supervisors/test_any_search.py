"""What every supervisor keeps to, on random trees with random orders of completion."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hive_frontend import (
    ABMCTS,
    MCTS,
    Agent,
    Ask,
    Beam,
    BestOfN,
    Searcher,
    SelfRefine,
    Supervisor,
    SupervisorError,
    TreeOfThoughts,
    Vote,
    agent,
    gen,
)
from hive_frontend.compiler.flow_graph import FlowGraph, FlowNode
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.supervisors.harness import FakeState, Step, draw, play, random_world


@agent
async def judge(candidates: list[str]) -> int:
    return int(await gen("\n".join(candidates)))


def vote(ask: Ask) -> int | None:
    """Any index, one out of range now and then, or a dead end."""
    return draw(ask.key).choice([*range(len(ask.args[0]) + 1), None])


small = st.integers(1, 3)
maybe = st.none() | st.integers(-2, 3)
thoughts = st.builds(
    TreeOfThoughts,
    branch_at=st.sampled_from(["think", ["think", "fork"]]),
    branching=small,
    breadth=small,
    limit=st.none() | small,
    order=st.sampled_from(["bfs", "dfs"]),
    select=st.sampled_from(["value", Vote(judge, votes=3)]),
    threshold=maybe,
    budget=st.none() | st.integers(1, 40),
)
monte_carlo = st.builds(
    MCTS,
    branch_at=st.sampled_from(["think", ["think", "fork"]]),
    simulations=st.integers(1, 40),
    branching=st.none() | small,
    exploration=st.sampled_from([0, 1, 1.5]),
    widening=st.sampled_from([None, (1, 0.5), (2.5, 0.3)]),
    rollout=st.sampled_from(["to_end", "value"]),
    workers=st.integers(1, 5),
    target=maybe,
    limit=small,
)
samples = st.builds(
    BestOfN, st.integers(1, 9), at=st.sampled_from([None, "think", "fork"]), target=st.just(2), batch=small
)
refinement = st.builds(
    SelfRefine, at=st.sampled_from(["think", "fork"]), samples=small, patience=st.integers(0, 2), target=maybe
)
beam = st.builds(
    Beam, at=st.sampled_from(["think", "fork"]), width=small, expand=small, cumulative=st.booleans()
)
adaptive = st.builds(
    ABMCTS,
    branch_at=st.sampled_from(["think", ["think", "fork"]]),
    simulations=st.integers(1, 40),
    posterior=st.sampled_from(["gaussian", "beta"]),
    bounds=st.sampled_from([None, (-3, 3)]),
    workers=st.integers(1, 5),
)
searchers = thoughts | monte_carlo | adaptive | samples | refinement | beam


@given(searchers, st.integers(0, 10**6), st.integers(0, 10**6))
def test_completion_order_changes_nothing(supervisor: Searcher[Any], seed: int, order: int) -> None:
    world = random_world(seed)
    calm = play(supervisor, world, answer=vote)
    hurried = play(supervisor, world, answer=vote, order=random.Random(order))
    assert hurried.search() == calm.search()
    assert vars(hurried.supervisor).pop("_progress") is not None
    assert vars(hurried.supervisor) == vars(supervisor), "settings never change"


@given(searchers, st.integers(0, 10**6))
def test_nothing_is_left_open(supervisor: Searcher[Any], seed: int) -> None:
    # Of rules that supervisors break, `play` complains itself.
    played = play(supervisor, random_world(seed), answer=vote)
    assert played.open == set()
    assert supervisor.ask(played.supervisor._progress) == [], "over is over"
    for state in played.states.values():
        assert state.kind != "waiting" or state.fired or state.path in played.dropped


@given(searchers)
def test_an_agent_that_calls_no_model(supervisor: Searcher[Any]) -> None:
    for end in ("return", "fail"):
        played = play(supervisor, lambda parent, path, end=end: Step(end))  # type: ignore[misc]
        assert played.firings == []


@pytest.mark.parametrize(
    ("supervisor", "shown"),
    [
        (TreeOfThoughts(branch_at="a"), "TreeOfThoughts(branch_at=('a',), branching=5, breadth=5, limit=1)"),
        (
            TreeOfThoughts(branch_at="a", order="dfs", limit=None, threshold=0.5),
            "TreeOfThoughts(branch_at=('a',), branching=5, breadth=5, limit=None, order='dfs', threshold=0.5)",
        ),
        (BestOfN(8), "BestOfN(n=8)"),
        (SelfRefine(at="a"), "SelfRefine(at='a', samples=1, patience=2)"),
        (Beam(at="a", width=2), "Beam(at='a', width=2, expand=5, cumulative=True)"),
        (
            ABMCTS(branch_at="a", simulations=9, posterior="beta", bounds=(0, 1)),
            "ABMCTS(branch_at=('a',), simulations=9, posterior='beta', bounds=(0, 1), workers=1)",
        ),
        (
            MCTS(branch_at="a", simulations=9, exploration=1, widening=(1, 0.5)),
            "MCTS(branch_at=('a',), simulations=9, exploration=1, widening=(1, 0.5), workers=1, limit=1)",
        ),
    ],
)
def test_settings_show(supervisor: Supervisor, shown: str) -> None:
    assert repr(supervisor) == shown


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (TreeOfThoughts, {"branch_at": []}, "branch_at is empty; give the name of at least one state"),
        (TreeOfThoughts, {"branch_at": ["a", 3]}, "branch_at must be the name of a state, not 3"),
        (TreeOfThoughts, {"branch_at": 3}, "branch_at must be the name of a state or a list of names, not 3"),
        (TreeOfThoughts, {"branch_at": "a", "order": "zigzag"}, "order must be one of 'bfs', 'dfs', not 'zi"),
        (TreeOfThoughts, {"branch_at": "a", "select": judge}, "select must be 'value' or a Vote"),
        (TreeOfThoughts, {"branch_at": "a", "threshold": "x"}, "threshold must be a number, not 'x'"),
        (TreeOfThoughts, {"branch_at": "a", "budget": 0}, "budget must be an integer of at least 1, not 0"),
        (Vote, {"agent": "judge"}, "agent must be an @agent function, not 'judge'"),
        (Vote, {"agent": judge, "votes": 0}, "votes must be an integer of at least 1, not 0"),
        (Vote, {"agent": judge, "text": "x"}, "text must be a function of a state, not 'x'"),
        (BestOfN, {"n": True}, "n must be an integer of at least 1, not True"),
        (BestOfN, {"n": 2, "at": ""}, "at must be the name of a state, not ''"),
        (BestOfN, {"n": 2, "target": 1.0}, "target and batch go together"),
        (SelfRefine, {"at": "a", "patience": -1}, "patience must be an integer of at least 0, not -1"),
        (SelfRefine, {"at": "a", "target": float("inf")}, "target must be a finite number, not inf"),
        (Beam, {"at": "a", "cumulative": 1}, "cumulative must be True or False, not 1"),
        (MCTS, {"branch_at": "a", "simulations": 0}, "simulations must be an integer of at least 1"),
        (
            MCTS,
            {"branch_at": "a", "simulations": 1, "exploration": -1},
            "exploration must be a finite number of at least 0, not -1",
        ),
        (MCTS, {"branch_at": "a", "simulations": 1, "widening": 2}, r"widening must be a pair \(k, alpha\)"),
        (
            MCTS,
            {"branch_at": "a", "simulations": 1, "widening": (1, -1)},
            "widening's alpha must be a finite number of at least 0, not -1",
        ),
        (MCTS, {"branch_at": "a", "simulations": 1, "rollout": "x"}, "rollout must be one of"),
        (ABMCTS, {"branch_at": "a", "simulations": 0}, "simulations must be an integer of at least 1"),
        (ABMCTS, {"branch_at": "a", "simulations": 1, "posterior": "x"}, "posterior must be one of"),
        (
            ABMCTS,
            {"branch_at": "a", "simulations": 1, "bounds": (1, 0)},
            r"bounds must be a pair \(lowest, highest\), not \(1, 0\)",
        ),
        (
            ABMCTS,
            {"branch_at": "a", "simulations": 1, "bounds": 1},
            r"bounds must be a pair \(lowest, highest\), not 1",
        ),
        (MCTS, {"branch_at": "a", "simulations": 1, "reward": 1}, "reward must be a function of a state"),
    ],
)
def test_bad_settings(make: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SupervisorError, match=f"^{make.__name__}: {message}"):
        make(**settings)


@pytest.mark.parametrize(
    "supervisor",
    [
        TreeOfThoughts(branch_at=["known", "nowhere"]),
        BestOfN(2, at="nowhere"),
        SelfRefine(at="nowhere"),
        Beam(at="nowhere"),
        MCTS(branch_at="nowhere", simulations=1),
        ABMCTS(branch_at="nowhere", simulations=1),
    ],
)
def test_names_that_the_agent_does_not_have(supervisor: Supervisor) -> None:
    nodes = (FlowNode("1", "known", "gen", 1, "", "worker"),)
    message = r"at='nowhere' is not a state of agent 'worker'; its states are known \(name a state with"
    with pytest.raises(SupervisorError, match=message):
        supervisor.check(FlowGraph("worker", nodes, ()))
    supervisor.check(FlowGraph("worker", nodes, (), open=True))
    BestOfN(3).check(FlowGraph("worker", (), ()))


def test_a_copy_of_a_supervisor_asks_the_same_agent() -> None:
    supervisor = TreeOfThoughts(branch_at="a", select=Vote(judge))
    copied = copy.deepcopy(supervisor)
    assert isinstance(copied.select, Vote)
    assert isinstance(copied.select.agent, Agent)
    assert copied.select.agent is judge


def test_fake_states_look_like_states() -> None:
    root = FakeState((0,), None, Step("think", 1))
    child = FakeState((0, 2), root, Step("return"))
    assert (child.score, child.kind, child.visits) == (1, "final", {"think": 1, "return": 1})
