"""How much of a workload the bench takes on, and what its blocks are."""

from __future__ import annotations

import pytest

from bench.logits_cache.plan import Clock, Extent, Part, Speed, affordable, fit, state_seconds, templates
from bench.logits_cache.workloads import Block, State, random_prompts, sampling_params, seed_of

SPEED = Speed(cold_s=2.0, warm_s=1.0, step_s=0.1)
EXTENT = Extent(states=100, samples=8, samples_least=3, tokens_expected=90, plain_arms=2, replaying_arms=3)
"""The first request of a state takes 11 s, each other one 10 s: 81 s for a state, 405 s in five arms."""


def block(temperature: float = 0.7, concurrency: int = 1) -> Block:
    return Block("resample", temperature, concurrency, 90, 0, 0)


def size(found: Block) -> tuple[int, int]:
    return found.states, found.samples


def test_what_a_state_takes() -> None:
    assert state_seconds(block(), EXTENT, 8, SPEED) == pytest.approx(405)
    assert state_seconds(block(), EXTENT, 3, SPEED) == pytest.approx(155)


def test_replay_of_greedy_samples_costs_next_to_nothing() -> None:
    assert state_seconds(block(temperature=0.0), EXTENT, 8, SPEED) == pytest.approx(2 * 81 + 3 * 11)


def test_without_a_limit_everything_is_sampled() -> None:
    assert size(fit(block(), EXTENT, None, SPEED)) == (100, 8)


def test_as_many_states_as_fit() -> None:
    assert size(fit(block(), EXTENT, 1300.0, SPEED)) == (3, 8)


def test_states_come_in_as_many_as_are_in_flight() -> None:
    assert size(fit(block(concurrency=10), EXTENT, 900.0, SPEED)) == (20, 8)
    assert size(fit(block(concurrency=10), EXTENT, 1e6, SPEED)) == (100, 8)


@pytest.mark.parametrize(("seconds", "samples"), [(400.0, 7), (206.0, 4), (20.0, 3), (-5.0, 3)])
def test_fewer_samples_where_time_is_short(seconds: float, samples: int) -> None:
    assert size(fit(block(), EXTENT, seconds, SPEED)) == (1, samples)


def test_the_dearest_optional_parts_are_left_out() -> None:
    parts = [Part(50, 1), Part(10, 1, True), Part(40, 1, True), Part(20, 1, True)]
    assert affordable(parts, None) == [True] * 4
    assert affordable(parts, 120) == [True] * 4
    assert affordable(parts, 119) == [True, True, False, True]
    assert affordable(parts, 60) == [True, True, False, False]
    assert affordable(parts, 1) == [True, False, False, False]


def test_the_clock_divides_what_is_over_by_weight() -> None:
    now = 100.0
    clock = Clock(180.0, [Part(20, 1), Part(10, 3), Part(10, 1)], lambda: now)
    assert clock.next() == pytest.approx(20 + 40 / 5)
    now = 140.0
    assert clock.next() == pytest.approx(10 + 20 * 3 / 4)
    now = 190.0
    assert clock.next() == pytest.approx(10)


def test_the_clock_without_a_deadline() -> None:
    assert Clock(None, [Part(1, 1)]).next() is None


def test_templates() -> None:
    blocks = templates(["resample", "sharpened", "search"], [0.0, 0.7], [1, 10], [1.0, 4.0], 100, True)
    kinds = [(b.workload, b.concurrency, b.temperature, b.grammar) for b in blocks]
    assert kinds.count(("sharpened", 1, 0.25, False)) == 1
    assert not any(workload == "sharpened" and concurrency == 10 for workload, concurrency, *_ in kinds)
    assert len([kind for kind in kinds if kind[0] == "resample"]) == 4
    assert len([kind for kind in kinds if kind[0] == "search"]) == 8
    assert all(b.max_tokens == 100 for b in blocks if b.workload != "search")
    assert kinds[:2] == [("resample", 1, 0.0, False), ("resample", 1, 0.7, False)]
    assert [workload for workload, *_ in kinds[-2:]] == ["resample", "resample"]
    without_text = templates(["search"], [0.7], [1], [], 100, False)
    assert [b.grammar for b in without_text] == [False]


def test_long_outputs_have_a_fixed_length() -> None:
    params = sampling_params(block(), State("s", (1, 2), "a"), 0, has_text=True)
    assert params["ignore_eos"] is True
    assert params["max_new_tokens"] == 90
    assert "stop" not in params


@pytest.mark.parametrize("grammar", [False, True])
def test_thoughts_end_at_a_line_break(grammar: bool) -> None:
    thought = Block("search", 0.7, 1, 32, 0, 0, grammar=grammar)
    params = sampling_params(thought, State("s", (1, 2), "a\n"), 0, has_text=True)
    assert params["stop"] == "\n"
    assert params.get("regex") == ("a\n" if grammar else None)
    assert "ignore_eos" not in params


def test_thoughts_without_text_have_a_fixed_length() -> None:
    params = sampling_params(Block("search", 0.7, 1, 10, 0, 0), State("s", (1, 2), None), 0, has_text=False)
    assert params["ignore_eos"] is True
    assert "stop" not in params


def test_seeds_name_a_sample() -> None:
    state = State("s", (1,), None)
    seeds = {seed_of(workload, state, sample) for workload in ("a", "b") for sample in range(50)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seed_of("a", state, 3) == seed_of("a", State("s", (9, 9), "x"), 3)


def test_random_prompts_repeat_and_differ() -> None:
    one, two = random_prompts(100, 3), random_prompts(100, 3)
    assert one == two
    assert len({state.input_ids for state in (*one.test, *one.unseen)}) == len(one.test) + len(one.unseen)
    assert not one.has_text
