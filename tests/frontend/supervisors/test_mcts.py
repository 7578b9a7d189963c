"""MCTS: its statistics add up, and it spends its simulations where the rewards are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hive_frontend import MCTS, SupervisorError
from hive_frontend.supervisors.mcts import Node
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.supervisors.harness import (
    FakeState,
    Path,
    Played,
    Step,
    World,
    draw,
    play,
    random_world,
    written_world,
)


def nodes(played: Played) -> Iterator[Node]:
    """All nodes of the tree, parents first."""
    todo = [played.supervisor._progress.root]
    while todo:
        node = todo.pop()
        yield node
        todo += node.children.values()


@given(
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.sampled_from(["to_end", "value"]),
    st.integers(1, 4),
    st.sampled_from([None, (1, 0.5), (3, 0.2)]),
)
def test_the_statistics_add_up(
    seed: int, simulations: int, rollout: Any, workers: int, widening: Any
) -> None:
    supervisor = MCTS(
        branch_at="think",
        simulations=simulations,
        branching=3,
        rollout=rollout,
        workers=workers,
        widening=widening,
    )
    played = play(supervisor, random_world(seed))
    above, root, *others = nodes(played)
    assert above.visits == root.visits == simulations
    for node in [root, *others]:
        state: Any = node.state
        assert node.pending == node.firings == 0
        assert node.failures <= node.visits
        if state.kind == "waiting":
            judged_itself = rollout == "value" and node is not root
            assert node.visits == judged_itself + sum(child.visits for child in node.children.values())
            assert state.fired == len(node.children) <= 3
            assert all(child.visits for child in node.children.values())


def bandit(seed: int, best: int, depth: int = 4) -> World:
    """Below each of the first choices ("arms"), results are 1 with a chance of their own, or else 0."""

    def world(parent: FakeState | None, path: Path) -> Step:
        if len(path) <= depth:
            return Step("pull")
        chance = 0.8 if path[1] == best else 0.4
        return Step("return", float(draw(seed, path).random() < chance))

    return world


@pytest.mark.parametrize("workers", [1, 4])
def test_the_best_arm_gets_most_simulations(workers: int) -> None:
    arms, simulations, trials = 4, 160, 25
    wins = 0
    share = 0.0
    for seed in range(trials):
        best = seed % arms
        supervisor = MCTS(branch_at="pull", simulations=simulations, branching=arms, workers=workers)
        root = next(iter(next(nodes(play(supervisor, bandit(seed, best)))).children.values()))
        visits = [child.visits for _, child in sorted(root.children.items())]
        assert sum(visits) == simulations
        wins += visits.index(max(visits)) == best
        share += visits[best] / simulations / trials
    # With fixed seeds, these are facts. A uniform search would give 0.25 of its simulations to the best arm.
    assert wins >= 0.9 * trials
    assert share > 0.4


def test_a_state_is_fired_again_and_again() -> None:
    supervisor = MCTS(branch_at="pull", simulations=30, branching=6)
    played = play(supervisor, bandit(1, 0, depth=2))
    times = [index for index, path in enumerate(played.firings) if path == (0,)]
    assert len(times) == 6
    assert times == [0, 2, 4, 6, 8, 10], "each of them a simulation of its own, with its rollout behind it"


def test_the_last_firing_is_known_to_be_the_last() -> None:
    played = play(MCTS(branch_at="pull", simulations=99, branching=3), bandit(1, 0, depth=2))
    assert played.dropped == set()
    assert play(MCTS(branch_at="pull", simulations=9, branching=1), bandit(1, 0)).dropped == set()


@given(st.integers(0, 10**6), st.sampled_from([0.125, 1, 64]), st.integers(-8, 8))
def test_the_scale_of_rewards_does_not_matter(seed: int, scale: float, offset: int) -> None:
    def search(reward: Any) -> Any:
        return play(
            MCTS(branch_at="think", simulations=40, branching=3, reward=reward), random_world(seed)
        ).fired

    def scaled(state: Any) -> float | None:
        return None if state.score is None else offset + scale * state.score

    assert search(scaled) == search(None)


def test_simulations_that_fire_nothing_count() -> None:
    played = play(MCTS(branch_at="pull", simulations=1000, branching=2), bandit(1, 0, depth=2))
    assert len(played.firings) == 2 + 4, "the tree is finite, and then it is known"


def test_dead_ends_are_worth_as_little_as_the_worst() -> None:
    tree = {"0": Step("pull"), "0.0": Step("fail"), "0.1": Step("pull"), "0.1.0": Step("return", -5)}
    played = play(
        MCTS(branch_at="pull", simulations=12, branching=2, exploration=0.1),
        written_world(tree, Step("return", -4)),
    )
    root = played.supervisor._progress.root.children[(0,)]
    assert root.children[(0, 0)].visits == 1
    assert (root.visits, root.failures, root.rewards) == (12, 1, -5 - 4 * 10)


def test_workers_spread() -> None:
    """All that is in flight counts as lost, so the second of two simulations takes another way."""
    supervisor = MCTS(branch_at="pull", simulations=6, branching=2, workers=2)
    played = play(supervisor, lambda parent, path: Step("pull" if len(path) < 5 else "return", 1))
    assert played.firings[:2] == [(0,), (0,)], "one round has room for both firings of the root"
    assert {path[:2] for path in played.firings[8:10]} == {(0, 0), (0, 1)}


def test_values_of_states_instead_of_results() -> None:
    def world(parent: FakeState | None, path: Path) -> Step:
        return Step("think", path[-1]) if len(path) < 6 else Step("return", 9)

    def firings(simulations: int) -> list[Path]:
        supervisor = MCTS(branch_at="think", simulations=simulations, branching=3, rollout="value")
        return play(supervisor, world).firings

    # 0.0 is worth no more than 0; 0.1 and 0.2 are, and the next state after each is not. Then the root is full.
    assert firings(3) == [(0,), (0,), (0, 1)]
    assert firings(6) == [(0,), (0,), (0, 1), (0,), (0, 2), (0, 0)]


def test_a_search_by_values_follows_them_while_they_rise() -> None:
    def world(parent: FakeState | None, path: Path) -> Step:
        return Step("return", 99) if len(path) > 8 else Step("think", len(path))

    played = play(MCTS(branch_at="think", simulations=8, rollout="value"), world)
    assert [state.score for state in played.results] == [99], "one state further in each simulation"
    spread = play(MCTS(branch_at="think", simulations=24, rollout="value", workers=3), world)
    assert [len(state.path) for state in spread.results] == [9] * 3, "as many ways as workers"


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 4))
def test_a_simulation_by_value_fires_one_node(seed: int, simulations: int, workers: int) -> None:
    supervisor = MCTS(branch_at="think", simulations=simulations, rollout="value", workers=workers)
    played = play(supervisor, random_world(seed))
    assert sum(played.states[path].name == "think" for path in played.firings) <= simulations


def test_widening() -> None:
    supervisor = MCTS(branch_at="pull", simulations=100, widening=(1, 0.5))
    for node in nodes(play(supervisor, bandit(5, 0))):
        assert len(node.children) <= max(1, math.floor(node.visits**0.5))
    root = play(supervisor, bandit(5, 0)).fired["0"]
    assert root == 10 - 1, "when the last simulation begins, 99 are known"
    assert supervisor.branching is None
    bounded = play(MCTS(branch_at="pull", simulations=100, widening=(1, 0.5), branching=4), bandit(5, 0))
    assert bounded.fired["0"] == 4


def test_the_target_ends_the_search() -> None:
    def results(**settings: Any) -> int:
        supervisor = MCTS(branch_at="pull", simulations=200, branching=4, **settings)
        return sum(state.score == 1 for state in play(supervisor, bandit(2, 1)).results)

    assert results(target=1) == 1
    assert results(target=1, limit=7) == 7
    assert results(target=2) > 7


def test_a_reward_of_the_users() -> None:
    seen = []

    def reward(state: Any) -> float:
        seen.append(state.kind)
        return -state.score  # type: ignore[no-any-return]

    tree = {"0": Step("pull"), "0.0": Step("return", 1), "0.1": Step("return", 0), "0.2": Step("fail")}
    supervisor = MCTS(branch_at="pull", simulations=50, branching=3, reward=reward)
    root = play(supervisor, written_world(tree, Step("fail"))).supervisor._progress.root.children[(0,)]
    visits = [root.children[(0, arm)].visits for arm in range(3)]
    assert visits[1] > visits[0]
    assert visits[1] > visits[2]
    assert set(seen) == {"final"}


def test_scores_without_bounds() -> None:
    def world(score: float) -> World:
        return written_world({"0": Step("pull")}, Step("return", score))

    play(MCTS(branch_at="pull", simulations=5), world(-math.inf))
    with pytest.raises(
        SupervisorError, match=r"^MCTS: the reward of a state must be finite or -inf; .* is inf"
    ):
        play(MCTS(branch_at="pull", simulations=5), world(math.inf))
