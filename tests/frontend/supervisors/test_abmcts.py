"""AB-MCTS: its statistics add up, it goes wider or deeper as the rewards say, and it finds the better option."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest
from hive_frontend import (
    ABMCTS,
    Budget,
    ModelError,
    Request,
    SupervisorError,
    agent,
    choose,
    gen,
    run,
    score,
)
from hive_frontend.operation import Offer
from hive_frontend.supervisors.abmcts import Node, Rewards
from hive_frontend.testing import FunctionModel
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.supervisors.harness import FakeState, Path, Played, Step, World, draw, play, random_world


def nodes(played: Played) -> Iterator[Node]:
    """All nodes of the tree, parents first."""
    todo = [played.supervisor._progress.root]
    while todo:
        node = todo.pop()
        yield node
        todo += node.children.values()


def size(node: Node) -> int:
    return 1 + sum(map(size, node.children.values()))


@given(
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.sampled_from(["gaussian", "beta"]),
    st.integers(1, 5),
    st.sampled_from(["think", ["think", "fork"]]),
)
def test_the_statistics_add_up(seed: int, simulations: int, posterior: Any, workers: int, at: Any) -> None:
    supervisor = ABMCTS(branch_at=at, simulations=simulations, posterior=posterior, workers=workers)
    played = play(supervisor, random_world(seed))
    _, root, *others = nodes(played)
    progress = played.supervisor._progress
    assert size(root) == 1 + simulations, "each simulation makes a node"
    assert progress.chosen == {}
    for node in [root, *others]:
        children = list(node.children.values())
        rewards = [each.generated.count + each.generated.failures for each in (node, *children)]
        assert rewards[0] == len(children) == node.firings
        assert node.below.count + node.below.failures == size(node)
        assert node.continued.count + node.continued.failures == sum(size(child) - 1 for child in children)
    choices = sum(len(node.children) for node in [root, *others] if node.state and node.state.options)
    assert sum(arm.count + arm.failures for arm in progress.options.values()) == choices


@given(
    st.lists(st.none() | st.integers(-4, 4), min_size=1),
    st.integers(-9, -5),
    st.integers(5, 9),
    st.booleans(),
)
def test_rewards_are_summed_up(found: list[int | None], lowest: int, highest: int, flat: bool) -> None:
    if flat:
        found, lowest, highest = [None if each is None else 3 for each in found], 3, 3
    rewards = Rewards()
    for each in found:
        rewards.add(each)

    def scale(each: int | None) -> float:
        if each is None:
            return 0
        return 1 if flat else (each - lowest) / (highest - lowest)

    scaled = [scale(each) for each in found]
    count, mean, deviations = rewards.scaled(lowest, highest)
    assert count == len(scaled)
    assert mean == pytest.approx(statistics.fmean(scaled))
    assert deviations == pytest.approx(statistics.pvariance(scaled) * count, abs=1e-9)


@pytest.mark.parametrize("posterior", ["gaussian", "beta"])
def test_draws_follow_the_posterior(posterior: Any) -> None:
    supervisor = ABMCTS(branch_at="a", simulations=1, posterior=posterior, bounds=(0, 1))
    progress = supervisor.begin()
    rewards = Rewards()
    for reward in [0.2, 0.4, 0.9, 0.9]:
        rewards.add(reward)
    draws = [supervisor._draw(progress, rewards) for _ in range(20_000)]
    if posterior == "beta":
        mean, variance = 2.9 / 5, 2.9 * 2.1 / (5**2 * 6)
    else:
        # Student's t with 5 degrees of freedom, whose variance is 5/3 of the squared scale.
        squares = 0.1 + sum((each - 0.6) ** 2 for each in [0.2, 0.4, 0.9, 0.9]) + 4 / 5 * 0.6**2
        mean, variance = 4 * 0.6 / 5, squares / 5 / 5 * 5 / 3
    assert statistics.fmean(draws) == pytest.approx(mean, abs=0.01)
    assert statistics.pvariance(draws) == pytest.approx(variance, rel=0.1)


def refining(step: float, noise: float = 0.05) -> World:
    """Each child is worth `step` more than its parent; the first answers are worth about 0.3."""

    def world(parent: FakeState | None, path: Path) -> Step:
        if parent is None:
            return Step("answer")
        before = 0.3 if parent.score is None else parent.score + step
        # Offered, so that no state has to run on to its end.
        return Step("answer", Offer(min(1.0, max(0.0, before + draw(path).gauss(0, noise)))))

    return world


def shape(world: World, seed: int = 0, **settings: Any) -> tuple[int, int]:
    """The width at the root and the depth of a search with 40 simulations."""
    supervisor = ABMCTS(branch_at="answer", simulations=40, bounds=(0, 1), **settings)
    supervisor.seed = seed
    played = play(supervisor, world, limit=42)
    return played.fired["0"], max(map(len, played.states)) - 1


def test_it_goes_deeper_where_refinement_helps_and_wider_where_it_harms() -> None:
    helps = [shape(refining(0.15), seed) for seed in range(20)]
    harms = [shape(refining(-0.2), seed) for seed in range(20)]
    assert statistics.fmean(width for width, _ in helps) < 10
    assert statistics.fmean(width for width, _ in harms) > 15
    assert statistics.fmean(depth for _, depth in helps) > statistics.fmean(depth for _, depth in harms) + 1


@pytest.mark.parametrize("best", [0, 1, 2])
def test_it_learns_which_option_is_best(best: int) -> None:
    """As with several models: of three options, one gives better answers wherever it is taken."""

    def world(parent: FakeState | None, path: Path) -> Step:
        option = played_options[path] if parent is not None else None
        before = 0.2 if parent is None or parent.score is None else parent.score
        step = draw(path).gauss(0.05 if option == best else -0.05, 0.05)
        return Step("answer", Offer(min(1.0, max(0.0, before + step))), options=3)

    taken = 0
    for seed in range(10):
        supervisor = ABMCTS(branch_at="answer", simulations=60, bounds=(0, 1))
        supervisor.seed = seed
        played_options: dict[Path, int | None] = {}
        played = play(supervisor, world, limit=62, options=played_options)
        taken += sum(option == best for option in played.options.values())
    # With fixed seeds, this is a fact. Without learning it would be 200 of the 600.
    assert taken > 350


def test_the_seed_decides() -> None:
    assert shape(refining(0), 1) == shape(refining(0), 1)
    assert len({shape(refining(0), seed) for seed in range(8)}) > 4


def test_a_round_is_drawn_from_the_same_posteriors() -> None:
    supervisor = ABMCTS(branch_at="answer", simulations=10, workers=4, bounds=(0, 1))
    played = play(supervisor, refining(0.1))
    assert played.firings[:4] == [(0,)] * 4, "nothing is known yet"
    assert len(played.firings) == 10


def test_results_are_not_continued_and_dead_ends_count_as_the_lowest() -> None:
    tree = {(0,): Step("answer"), (0, 0): Step("return", 1.0), (0, 1): Step("fail")}
    played = play(
        ABMCTS(branch_at="answer", simulations=30, bounds=(0, 1)),
        lambda parent, path: tree.get(path, Step("return", 0.5)),
    )
    assert played.fired == {"0": 30}
    root = played.supervisor._progress.root.children[(0,)]
    assert (root.generated.count, root.generated.failures) == (29, 1)


def test_the_best_state_runs_on_to_its_end() -> None:
    def world(parent: FakeState | None, path: Path) -> Step:
        return Step("answer", len(path)) if len(path) < 50 else Step("return", 60)

    played = play(ABMCTS(branch_at="answer", simulations=5), world)
    assert [len(state.path) for state in played.results] == [50]
    assert len(played.firings) < 5 + 50


def test_a_reward_outside_of_its_bounds() -> None:
    def world(parent: FakeState | None, path: Path) -> Step:
        return Step("answer", len(path) - 1.0)

    with pytest.raises(SupervisorError, match=r"ABMCTS: the reward of .* is 2.0, outside of bounds=\(0, 1\)"):
        play(ABMCTS(branch_at="answer", simulations=30, bounds=(0, 1)), world)


@agent
async def solve(rounds: int) -> str:
    text = ""
    for _ in range(rounds):
        style = await choose(["plain", "ornate"], name="style")
        text = str(await gen(f"Better than {text!r}, {style}:", name="draft"))
        score(len(text) / 20 + 0.2 * (style == "ornate"), text)
    return text


def answer(request: Request) -> str:
    """Half of the time longer than the last answer."""
    text = request.text.split("'")[1]
    return text + "x" if draw(request.seed, request.sample).random() < 0.5 else text[1:]


def test_a_program_with_options(tmp_path: FilePath) -> None:
    supervisor = ABMCTS(branch_at="style", simulations=30, workers=2)
    model = FunctionModel(answer)
    result = run(solve, 40, model=model, seed=3, supervisor=supervisor)
    styles = [request.text.rpartition(", ")[2] for request in model.calls]
    assert len(styles) == 30
    assert styles.count("ornate:") > 18
    assert result.best is not None
    assert not result.best.finished, "no branch has gone 40 rounds"
    assert result.value == "x" * len(result.value or "")
    assert result.best.score == max(
        node.score for node in result.tree.nodes if node.score is not None and node.status != "dead"
    )
    (offered,) = [node for node in result.tree.nodes if node.status == "result"]
    assert offered.id == result.best.state
    assert result.tree.best == offered.id


def test_an_interrupted_search_is_resumed(tmp_path: FilePath) -> None:
    supervisor = ABMCTS(branch_at="style", simulations=20, workers=3)
    whole = run(solve, 9, model=FunctionModel(answer), seed=3, supervisor=supervisor)

    def breaks_down(request: Request) -> str:
        if len(broken.calls) > 11:
            raise ModelError("the server is gone")
        return answer(request)

    broken, again = FunctionModel(breaks_down), FunctionModel(answer)
    with pytest.raises(ModelError):
        run(solve, 9, model=broken, seed=3, supervisor=supervisor, checkpoint=tmp_path / "j")
    resumed = run(solve, 9, model=again, seed=3, supervisor=supervisor, checkpoint=tmp_path / "j")
    assert resumed.tree == whole.tree
    assert resumed.results == whole.results
    assert len(again.calls) < whole.totals.requests
    assert run(solve, 9, supervisor=supervisor, replay=tmp_path / "j").tree == whole.tree


def test_a_spent_budget_leaves_the_best_offer() -> None:
    supervisor = ABMCTS(branch_at="style", simulations=1000)
    result = run(
        solve, 40, model=FunctionModel(answer), seed=3, supervisor=supervisor, budget=Budget(calls=15)
    )
    assert result.totals.requests == 15
    assert result.best is not None
    assert result.best.value
    assert not result.best.finished
