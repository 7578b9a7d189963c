"""Best-of-n, Self-Refine and Beam: trees small enough to follow by hand."""

from __future__ import annotations

from typing import Any

from hive_frontend import Beam, BestOfN, SelfRefine, Supervisor
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.supervisors.harness import (
    FakeState,
    Path,
    Played,
    Step,
    play,
    random_world,
    written_world,
)


def search(supervisor: Supervisor, tree: dict[str, Step], default: Step | None = None) -> Played:
    return play(supervisor, written_world(tree, default or Step("return")))


# Best-of-n


def scored(parent: FakeState | None, path: Path) -> Step:
    """Two states in a row, the second called `draft`; then a result that is worth the number of its sample."""
    return Step(["plan", "draft", "return"][len(path) - 1], max(path))


def test_the_whole_agent_n_times() -> None:
    played = play(BestOfN(3), scored)
    assert played.fired == {"0": 3, "0.0": 1, "0.1": 1, "0.2": 1}
    assert played.dropped == set(), "the last firing was known to be the last"
    assert [state.id for state in played.results] == ["0.2.0", "0.1.0", "0.0.0"]


def test_the_agent_n_times_from_one_state_on() -> None:
    assert play(BestOfN(3, at="draft"), scored).fired == {"0": 1, "0.0": 3}
    later = play(
        BestOfN(2, at="think"), written_world({"0": Step("think"), "0.1": Step("think")}, Step("return"))
    )
    assert later.fired == {"0": 2, "0.1": 1}, "the first one of that name only"


def test_enough_ends_between_batches() -> None:
    def drawn(target: float) -> int:
        return play(BestOfN(10, target=target, batch=4), scored).fired["0"]

    assert [drawn(3), drawn(3.5), drawn(8), drawn(99)] == [4, 8, 10, 10]


# Self-Refine

DRAFT = Step("refine", 5)


def test_it_goes_on_from_what_is_better() -> None:
    tree = {
        "0": Step("refine", 1),
        "0.0": Step("refine", 0),
        "0.1": Step("refine", 2),
        "0.1.0": Step("refine", 2),
        "0.1.1": Step("refine", 1),
        "0.1.2": Step("refine", 3),
        "0.1.2.0": Step("check", 4),
        "0.1.2.0.0": Step("return", 5),
    }
    played = search(SelfRefine(at="refine", samples=2, patience=2), tree, Step("refine", 0))
    # 0.1 is better at once; of its children only the third; that one's first child, a result, ends the search.
    assert played.fired == {"0": 2, "0.1": 4, "0.1.2": 2, "0.1.2.0": 1}
    assert [state.id for state in played.results] == ["0.1.2.0.0"]


def test_after_patience_it_finishes_from_the_best_state() -> None:
    tree = {
        "0": DRAFT,
        "0.0": Step("refine", 3),
        "0.1": Step("refine", 4),
        "0.2": Step("refine", 2),
        "0.1.0": Step("refine", 0),
        "0.1.0.0": Step("fail"),
        "0.0.0": Step("return", 1),
    }
    played = search(SelfRefine(at="refine", patience=2), tree)
    # 0.1 goes straight on and dies, so 0.0 has its turn. 0.2 has none.
    assert played.fired == {"0": 3, "0.0": 1, "0.1": 1, "0.1.0": 1}
    assert played.dropped == {(0, 2)}, "the last firing of 0 was known to be the last"
    assert [state.id for state in played.results] == ["0.0.0"]


def test_a_result_can_be_the_best_state() -> None:
    tree = {"0": DRAFT, "0.0": Step("refine", 1), "0.1": Step("return", 4), "0.2": Step("fail")}
    played = search(SelfRefine(at="refine", samples=3, patience=0), tree)
    assert played.fired == {"0": 3}
    assert search(SelfRefine(at="refine", patience=1), {"0": DRAFT}, Step("fail")).fired == {"0": 2}


def test_no_patience_is_needed_beyond_the_target() -> None:
    tree = {"0": DRAFT, "0.0": Step("refine", 1), "0.0.0": Step("refine", 2)}
    assert search(SelfRefine(at="refine", samples=4, target=5), tree).fired == {"0": 1, "0.0": 1, "0.0.0": 1}


def test_a_first_score_is_an_improvement_and_none_is_not() -> None:
    tree = {"0": Step("refine"), "0.0": Step("refine"), "0.1": Step("refine", -9)}
    played = search(SelfRefine(at="refine", patience=1), tree, Step("fail"))
    assert played.fired == {"0": 2, "0.1": 2}


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 2))
def test_only_improvements_are_refined(seed: int, samples: int, patience: int) -> None:
    played = play(SelfRefine(at="think", samples=samples, patience=patience), random_world(seed))
    refined = [state for state in played.states.values() if state.name == "think" and state.fired > 1]
    scores = [state.score for state in refined]
    assert scores[1:] == sorted({score for score in scores[1:] if score is not None})
    assert all(state.fired <= samples * (1 + patience) for state in refined)


# Beam


def test_sums_of_scores_or_scores() -> None:
    tree = {
        "0": Step("step"),
        "0.0": Step("step", 5),
        "0.1": Step("other", 3),
        "0.1.0": Step("step", 4),
        "0.0.0": Step("step", 1),
        "0.0.1": Step("step", 0),
        "0.1.0.0": Step("step", 1.5),
        "0.1.0.1": Step("step", 1.5),
    }

    def fired(width: int, cumulative: bool) -> list[str]:
        supervisor = Beam(at="step", width=width, expand=2, cumulative=cumulative)
        return [id for id in search(supervisor, tree, Step("return", 0)).fired if id.count(".") >= 2]

    # By sums 6 and 5 against 5.5 and 5.5, where `other` does not count.
    assert fired(2, cumulative=True) == ["0.0.0", "0.1.0", "0.1.0.0"]
    assert fired(2, cumulative=False) == ["0.1.0", "0.1.0.0", "0.1.0.1"]


def test_results_hold_places_in_the_beam() -> None:
    tree = {
        "0": Step("step"),
        "0.0": Step("return", 2),
        "0.1": Step("step", 3),
        "0.2": Step("step", 2),
        "0.1.0": Step("step", 1),
        "0.1.1": Step("return", 1),
        "0.1.2": Step("step", -2),
    }

    def fired(**settings: Any) -> dict[str, int]:
        return search(Beam(at="step", expand=3, **settings), tree, Step("fail")).fired

    # 0.1 and the result, whose path is before that of 0.2; then the sums 4 and 4 leave the result behind.
    assert fired(width=2) == {"0": 3, "0.1": 3, "0.1.0": 3}
    # By own scores, 2 (the result) stays ahead of 1 and 1.
    assert fired(width=1, cumulative=False) == {"0": 3, "0.1": 3}


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
def test_the_beam_is_never_wider_than_it_may_be(seed: int, width: int, expand: int) -> None:
    played = play(Beam(at="think", width=width, expand=expand), random_world(seed))
    for visits in range(1, 9):
        generation = [s for s in played.states.values() if s.name == "think" and s.visits["think"] == visits]
        assert sum(state.fired > 0 for state in generation) <= width
