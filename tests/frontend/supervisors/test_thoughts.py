"""Tree of Thoughts: trees small enough to follow by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hive_frontend import Ask, TreeOfThoughts, Vote, agent
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.supervisors.harness import Played, Step, play, random_world, written_world

FORK = Step("fork")
END = Step("return", 0)
TREE = {
    "0": FORK,
    "0.0": Step("fork", 1),
    "0.1": Step("fork", 3),
    "0.2": Step("fork", 2),
    "0.1.0": Step("fork", 9),
    "0.1.1": Step("fail"),
    "0.1.2": Step("fork", 8),
    "0.2.1": Step("fork", 7),
}
"""Below the states that are not listed, everything ends."""


@agent
async def judge(candidates: list[str]) -> int:
    return len(candidates)


def search(answer: Any = None, tree: dict[str, Step] = TREE, **settings: Any) -> Played:
    supervisor = TreeOfThoughts(branch_at="fork", branching=3, **settings)
    return play(supervisor, written_world(tree, END), answer=answer)


def order(played: Played) -> list[str]:
    """The states branched at, in order."""
    return list(dict.fromkeys(".".join(map(str, path)) for path in played.firings))


def test_breadth_first() -> None:
    played = search(breadth=2, limit=None)
    assert order(played) == ["0", "0.1", "0.2", "0.1.0", "0.1.2"]
    assert {s.id for s in played.states.values() if s.path in played.dropped} == {"0.0", "0.2.1"}


def test_depth_first_goes_down_the_best_way_and_comes_back() -> None:
    assert order(search(order="dfs", limit=None)) == ["0", "0.1", "0.1.0", "0.1.2", "0.2", "0.2.1", "0.0"]
    # Of each set of siblings, `breadth` remain to come back to.
    assert order(search(order="dfs", limit=None, breadth=2)) == ["0", "0.1", "0.1.0", "0.1.2", "0.2", "0.2.1"]
    # The first ways to end are below 0.1.0.
    assert order(search(order="dfs", limit=1)) == ["0", "0.1", "0.1.0"]
    assert order(search(order="dfs", limit=4)) == ["0", "0.1", "0.1.0", "0.1.2"]


def test_states_below_the_threshold_are_given_up() -> None:
    played = search(order="dfs", limit=None, threshold=2.5)
    assert order(played) == ["0", "0.1", "0.1.0", "0.1.2"], "the first state has no score, and goes on"
    assert order(search(limit=None, threshold=2.5)) == order(played)
    assert order(search(limit=None, threshold=4)) == ["0"]
    assert "0.2" in order(search(limit=None, threshold=2)), "what scores just that goes on"


def test_the_budget_of_firings() -> None:
    for budget, branchings in (2, 0), (3, 1), (8, 2), (9, 3), (100, 7):
        assert len(order(search(order="dfs", limit=None, budget=budget))) == branchings
        played = search(breadth=2, limit=None, budget=budget)
        assert len(played.firings) == 3 * min(branchings, 5) <= budget


def test_votes_choose() -> None:
    asked: list[Ask] = []

    def answer(ask: Ask) -> object:
        """Three votes for the last, one for the first, and all kinds of answers that are no index."""
        asked.append(ask)
        return [2, "2", 2, 0, 7, -1, None, "the last", True, True, True, True][ask.key[1]]

    played = search(answer, {k: Step(s.name, s.score, f"line {k}") for k, s in TREE.items()},
                    breadth=2, limit=None, select=Vote(judge, votes=12))  # fmt: skip
    assert order(played) == ["0", "0.2", "0.0", "0.2.1"]
    assert [ask.key for ask in asked] == [(1, vote) for vote in range(12)], "no vote where there is no choice"
    assert {ask.agent for ask in asked} == {judge}
    assert asked[0].args == (["line 0\nline 0.0", "line 0\nline 0.1", "line 0\nline 0.2"],)


def test_ties_go_by_path_and_the_text_can_be_given() -> None:
    texts: list[str] = []

    def answer(ask: Ask) -> None:
        texts.extend(ask.args[0])

    select = Vote(judge, votes=1, text=lambda state: f"{state.id}: {state.score}")
    assert order(search(answer, breadth=1, limit=None, select=select)) == ["0", "0.0"]
    assert texts == ["0.0: 1", "0.1: 3", "0.2: 2"]


def test_no_vote_where_all_go_on() -> None:
    assert search(breadth=3, limit=1, select=Vote(judge)).asked == []


def test_votes_order_depth_first_search() -> None:
    played = search(lambda ask: len(ask.args[0]) - 1, order="dfs", limit=None, select=Vote(judge, votes=1))
    assert order(played) == ["0", "0.2", "0.2.1", "0.0", "0.1", "0.1.2", "0.1.0"]


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
def test_no_more_than_breadth_go_on_of_any_generation(seed: int, branching: int, breadth: int) -> None:
    supervisor = TreeOfThoughts(branch_at="think", branching=branching, breadth=breadth, limit=None)
    played = play(supervisor, random_world(seed))
    thinking = [state for state in played.states.values() if state.name == "think"]
    generations = Counter(state.visits["think"] for state in thinking if state.fired)
    assert all(count <= breadth for count in generations.values())
    assert {state.fired for state in thinking} <= {0, branching}
    for kept in thinking:
        for dropped in thinking:
            if kept.fired and not dropped.fired and kept.visits["think"] == dropped.visits["think"]:
                assert dropped.score is None or (kept.score is not None and kept.score >= dropped.score)
    others = [s for s in played.states.values() if s.kind == "waiting" and s.name != "think"]
    assert all(state.fired == 1 for state in others)


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_depth_first_without_limits_sees_what_breadth_first_sees(seed: int, branching: int) -> None:
    settings: dict[str, Any] = {"branch_at": "think", "branching": branching, "breadth": 99, "limit": None}
    world = random_world(seed, depth=4)
    deep = play(TreeOfThoughts(**settings, order="dfs", threshold=-1), world)
    broad = play(TreeOfThoughts(**settings, order="bfs", threshold=-1), world)
    assert deep.search() == broad.search()
