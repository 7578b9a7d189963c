"""Contribution scores, against equations 5 to 8 worked out by hand."""

from __future__ import annotations

from dataclasses import astuple
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.server.agents.contribution import Activity, Sharing, contributions

ACTIVITIES = {
    "writer": Activity(requests=4, prompt_tokens=80, cached_tokens=40, output_tokens=20, running=8),
    "tester": Activity(requests=2, prompt_tokens=40, cached_tokens=40, output_tokens=10, running=2),
    "critic": Activity(requests=1, prompt_tokens=20, cached_tokens=0, output_tokens=5, running=1),
}
PEAKS = {"writer": 4, "tester": 2, "critic": 1}
SHARING = {
    ("tester", "writer"): Sharing(tokens=100, events=3),
    ("critic", "writer"): Sharing(tokens=25, events=1),
    ("tester", "gone"): Sharing(tokens=4, events=1),
}
INTRINSIC = {"writer": 1.0, "tester": 0.25, "critic": 0.0}
COLLABORATIVE = {"writer": 1.0, "tester": 0.88, "critic": 0.2}


def test_every_factor_is_relative_to_the_largest_one() -> None:
    found = contributions(ACTIVITIES, PEAKS, {}, 0.0)
    # Activity, workload, efficiency, concurrency; equation 6 multiplies them.
    assert astuple(found["writer"])[:4] == (1.0, 1.0, 0.5, 1.0)
    assert astuple(found["tester"])[:4] == (0.5, 0.5, 1.0, 0.5)
    assert astuple(found["critic"])[:4] == pytest.approx((0.25, 0.25, 0.0, 1 / 3))


def test_the_intrinsic_part_is_the_product_of_the_factors() -> None:
    # 1 x 1 x 0.5 x 1 = 0.5 is the largest, and 0.5 x 0.5 x 1 x 0.5 = 0.125 a quarter of it.
    found = contributions(ACTIVITIES, PEAKS, SHARING, 0.6)
    assert {name: agent.intrinsic for name, agent in found.items()} == INTRINSIC


def test_an_edge_weighs_the_root_of_its_tokens_times_the_logarithm_of_its_events() -> None:
    assert Sharing(tokens=100, events=3).weight == pytest.approx(10 * log(4))
    assert Sharing(tokens=25, events=1).weight == pytest.approx(5 * log(2))
    assert Sharing().weight == 0.0


def test_the_collaborative_part_counts_edges_to_and_from_an_agent() -> None:
    # In units of ln 2: the edges weigh 20, 5 and 2, so the agents have 25, 22 and 5.
    found = contributions(ACTIVITIES, PEAKS, SHARING, 0.6)
    assert {name: agent.collaborative for name, agent in found.items()} == pytest.approx(COLLABORATIVE)


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.6, 1.0])
def test_the_score_weighs_both_parts(weight: float) -> None:
    found = contributions(ACTIVITIES, PEAKS, SHARING, weight)
    assert {name: agent.score for name, agent in found.items()} == pytest.approx(
        {name: (1 - weight) * INTRINSIC[name] + weight * COLLABORATIVE[name] for name in ACTIVITIES}
    )


def test_an_agent_without_requests_in_the_window_has_no_score() -> None:
    # Its last request arrived before the window, and ended in it.
    activities = {**ACTIVITIES, "gone": Activity(cached_tokens=5, output_tokens=90)}
    found = contributions(activities, PEAKS, SHARING, 0.6)
    assert found == contributions(ACTIVITIES, PEAKS, SHARING, 0.6)


def test_nobody_active_has_no_scores() -> None:
    assert contributions({}, {}, {}, 0.6) == {}
    assert contributions({}, {}, SHARING, 0.6) == {}


def test_without_any_cached_token_what_agents_share_is_all_that_counts() -> None:
    cold = {
        name: Activity(done.requests, done.prompt_tokens, 0, done.output_tokens, done.running)
        for name, done in ACTIVITIES.items()
    }
    found = contributions(cold, PEAKS, SHARING, 0.6)
    assert {name: agent.intrinsic for name, agent in found.items()} == dict.fromkeys(ACTIVITIES, 0.0)
    assert {name: agent.score for name, agent in found.items()} == pytest.approx(
        {name: 0.6 * COLLABORATIVE[name] for name in ACTIVITIES}
    )


def test_without_any_edge_what_agents_do_is_all_that_counts() -> None:
    found = contributions(ACTIVITIES, PEAKS, {}, 0.6)
    assert {name: agent.score for name, agent in found.items()} == pytest.approx(
        {name: 0.4 * INTRINSIC[name] for name in ACTIVITIES}
    )


def test_requests_without_tokens_divide_by_nothing() -> None:
    found = contributions({"probe": Activity(requests=3, running=3)}, {}, {}, 0.6)
    assert astuple(found["probe"]) == (1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


def test_more_cached_than_asked_counts_as_all() -> None:
    # A prompt can be counted in the round after the one that its cached tokens are.
    activities = {
        "lucky": Activity(requests=1, prompt_tokens=1, cached_tokens=900, output_tokens=1, running=1),
        "other": Activity(requests=1, prompt_tokens=10, cached_tokens=5, output_tokens=1, running=1),
    }
    assert contributions(activities, {}, {}, 0.6)["other"].efficiency == 0.5


NAMES = st.sampled_from("abcd")
COUNTS = st.integers(0, 10**9)


@given(
    st.dictionaries(NAMES, st.builds(Activity, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)),
    st.dictionaries(NAMES, COUNTS),
    st.dictionaries(st.tuples(NAMES, NAMES), st.builds(Sharing, COUNTS, COUNTS)),
    st.floats(0, 1),
)
@settings(max_examples=300, deadline=None)
def test_every_number_is_from_0_to_1_and_the_best_agent_has_1(
    activities: dict[str, Activity],
    peaks: dict[str, int],
    sharing: dict[tuple[str, str], Sharing],
    weight: float,
) -> None:
    found = contributions(activities, peaks, sharing, weight)
    assert found.keys() == {name for name, done in activities.items() if done.requests}
    for agent in found.values():
        assert all(0.0 <= number <= 1.0 + 1e-12 for number in astuple(agent))
    for part in ("activity", "workload", "efficiency", "concurrency", "intrinsic", "collaborative"):
        best = max((getattr(agent, part) for agent in found.values()), default=0.0)
        assert best in (0.0, 1.0), part


def test_activities_add_up_and_can_be_taken_back() -> None:
    total = Activity()
    for done in ACTIVITIES.values():
        total.add(done)
    assert total == Activity(requests=7, prompt_tokens=140, cached_tokens=80, output_tokens=35, running=11)
    for done in ACTIVITIES.values():
        total.add(done, sign=-1)
    assert total == Activity()
