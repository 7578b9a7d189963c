"""The sampler: its distribution, its order, and that a head decides exactly as the whole row does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hive_frontend.wire import derive_seed
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head
from hive.server.logits_cache.sampling import (
    SamplingRule,
    draw,
    draw_live,
    probability,
    uniform,
)
from tests.hive.logits_cache.truth import draw_row, expected, whole_head

ALL = 1 << 30
RULES = {
    "plain": SamplingRule.of(1.0, ALL, 1.0, 0.0),
    "cool": SamplingRule.of(0.7, ALL, 1.0, 0.0),
    "warm": SamplingRule.of(2.0, ALL, 1.0, 0.0),
    "top_k": SamplingRule.of(1.0, 5, 1.0, 0.0),
    "top_p": SamplingRule.of(1.0, ALL, 0.8, 0.0),
    "min_p": SamplingRule.of(1.0, ALL, 1.0, 0.2),
    "all": SamplingRule.of(0.9, 12, 0.9, 0.02),
}


def chi_square_fails(draws: NDArray[np.int64], probabilities: NDArray[np.float64]) -> bool:
    """Pearson's test at about six sigma, over cells that expect at least five draws."""
    counts = np.bincount(draws, minlength=len(probabilities))
    expected_counts = probabilities * len(draws)
    cells = expected_counts >= 5
    if counts[probabilities == 0].any():
        return True
    statistic = ((counts - expected_counts)[cells] ** 2 / expected_counts[cells]).sum()
    freedom = cells.sum() - 1
    return bool(statistic > freedom + 6 * np.sqrt(2 * freedom) + 12)


def sample(
    row: NDArray[np.float32], rule: SamplingRule, count: int, u: Callable[[int, int], float]
) -> NDArray[np.int64]:
    head = whole_head(row, rule.temperature)
    return np.array([draw(head, rule, u(seed, 7)) for seed in range(count)])


@pytest.mark.parametrize("name", RULES)
def test_draws_follow_the_distribution(name: str) -> None:
    row = np.random.default_rng(1).normal(size=24).astype(np.float32) * 2
    draws = sample(row, RULES[name], 100_000, uniform)
    assert not chi_square_fails(draws, expected(row, RULES[name]))


def test_the_chi_square_test_catches_a_biased_sampler() -> None:
    row = np.random.default_rng(1).normal(size=24).astype(np.float32) * 2
    biased = sample(row, RULES["plain"], 100_000, lambda seed, position: uniform(seed, position) ** 1.03)
    assert chi_square_fails(biased, expected(row, RULES["plain"]))


def test_positions_of_one_seed_are_independent_draws() -> None:
    row = np.random.default_rng(2).normal(size=24).astype(np.float32)
    head = whole_head(row, 1.0)
    draws = np.array([draw(head, RULES["plain"], uniform(42, position)) for position in range(100_000)])
    assert not chi_square_fails(draws, expected(row, RULES["plain"]))


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31))
def test_uniform_is_in_the_unit_interval_and_repeats(seed: int, position: int) -> None:
    u = uniform(seed, position)
    assert 0.0 <= u < 1.0
    assert u == uniform(seed, position)
    assert u != uniform(seed + 1, position)


def test_derived_seeds_tell_their_parts_apart() -> None:
    assert derive_seed("a", "b") != derive_seed("ab", "")
    assert derive_seed("s", 1) == derive_seed("s", 1)
    assert 0 <= derive_seed("s") < 2**63


rows = st.one_of(
    # A coarse grid makes ties common, as bf16 does; -inf is what a grammar leaves behind.
    st.lists(st.sampled_from([-np.inf, -8.0, -2.0, -1.5, 0.0, 0.5, 3.0]), min_size=4, max_size=60),
    st.lists(st.floats(-30, 30, width=32), min_size=4, max_size=60),
    st.integers(4, 60).map(lambda n: [0.0] * n),
    st.integers(4, 60).map(lambda n: [30.0] + [-30.0] * n),
).filter(lambda values: max(values) > -np.inf)
rules = st.builds(
    SamplingRule.of,
    st.sampled_from([0.05, 0.3, 0.7, 1.0, 2.0]),
    st.sampled_from([1, 2, 7, ALL]),
    st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5]),
)


@settings(max_examples=600, deadline=None)
@given(rows, rules, st.integers(1, 40), st.floats(0, 1, exclude_max=True), st.sampled_from([0.3, 1.0, 1.7]))
def test_a_head_decides_as_the_whole_row_does_or_not_at_all(
    values: list[float], rule: SamplingRule, size: int, u: float, recorded_at: float
) -> None:
    row = np.array(values, dtype=np.float32)
    whole = whole_head(row, rule.temperature)
    truth = draw(whole, rule, u)
    recorded = whole_head(row, recorded_at)
    picked = np.argsort(-row, kind="stable")[:size]
    head = Head.select(picked.astype(np.int64), row[picked], recorded.support, recorded.normalisers)
    for cut in (head, head.trimmed(0.001)):
        assert draw(cut, rule, u) in (truth, None)


@given(rows, st.integers(0, 2**63 - 1))
def test_the_live_sampler_always_answers_within_the_support(values: list[float], seed: int) -> None:
    row = np.array(values, dtype=np.float32)
    rule = RULES["plain"]
    picked = np.argsort(-row, kind="stable")[:3]
    whole = whole_head(row, 1.0)
    head = Head.select(picked.astype(np.int64), row[picked], whole.support, whole.normalisers)
    token = draw_live(head, lambda: row, rule, uniform(seed, 0))
    assert row[token] > -np.inf
    assert token == draw_row(row, rule, uniform(seed, 0), 3)


@pytest.mark.parametrize("name", RULES)
def test_draws_beyond_the_head_follow_the_distribution(name: str) -> None:
    row = np.random.default_rng(1).normal(size=24).astype(np.float32)
    rule = RULES[name]
    draws = np.array([draw_row(row, rule, uniform(seed, 7), 3) for seed in range(30_000)])
    assert not chi_square_fails(draws, expected(row, rule))
    whole = whole_head(row, rule.temperature)
    shares = [probability(whole, lambda: row, rule, token) for token in range(24)]
    assert np.allclose(shares, expected(row, rule))


def test_a_head_recorded_at_a_very_cold_temperature_serves_warmer_ones_soundly() -> None:
    row = -np.arange(40, dtype=np.float32)
    head = whole_head(row, 0.01)
    cut = Head(head.ids[:20], head.logits[:20], head.support, head.normalisers)
    for u in np.linspace(0, 0.999, 50):
        rule = SamplingRule.of(1.0, ALL, 1.0, 0.0)
        assert draw(cut, rule, u) in (draw(whole_head(row, 1.0), rule, u), None)
    assert draw(cut, SamplingRule.of(1.0, ALL, 1.0, 0.0), 0.5) == 0


def test_ties_are_ordered_by_token_id_and_cut_ties_are_dropped() -> None:
    row = np.array([1.0, 3.0, 2.0, 3.0, 2.0], dtype=np.float32)
    assert whole_head(row, 1.0).ids.tolist() == [1, 3, 2, 4, 0]
    head = Head.select(np.array([1, 3, 4]), row[[1, 3, 4]], 5, {1.0: 1.0})
    assert head.ids.tolist() == [1, 3], "token 2 ties with 4 and was not picked: neither can be kept"
