"""The bench's figures against cases computed by hand."""

from __future__ import annotations

import math

import pytest

from bench.logits_cache.analysis import (
    Interval,
    achieved_speedup,
    counted,
    crossing,
    entropy,
    figures,
    hit_ratio,
    ideal_speedup,
    mean_interval,
    overhead,
    share_distinct,
    share_same,
    speedups,
    step_seconds,
)
from bench.logits_cache.client import Key, Timing
from bench.logits_cache.workloads import Variant

# Two samples of one state, 11 tokens each, 0.1 s per step: a cold prompt of 1 s (first token after 1.1 s) and a
# warm one of 0.1 s.
FIRST: Key = ("s", 0)
SECOND: Key = ("s", 1)
BASE = {
    FIRST: Timing(latency_s=2.1, ttft_s=1.1, tokens=11, replayed=0),
    SECOND: Timing(latency_s=1.2, ttft_s=0.2, tokens=11, replayed=0),
}
# The second sample replays 6 of its 11 tokens, and takes 0.8 s.
REPLAYED = {FIRST: BASE[FIRST], SECOND: Timing(latency_s=0.8, ttft_s=0.1, tokens=11, replayed=6)}


def test_a_step_is_the_time_after_the_first_token_per_further_token() -> None:
    assert step_seconds(BASE) == pytest.approx((1.0 + 1.0) / 20)


def test_a_step_of_single_tokens_is_unknown() -> None:
    assert math.isnan(step_seconds({FIRST: Timing(1.0, 1.0, 1, 0)}))


def test_speedup_compares_the_same_request() -> None:
    assert speedups(REPLAYED, BASE, [FIRST, SECOND]) == pytest.approx([1.0, 1.2 / 0.8])


def test_speedup_of_a_shorter_output_is_against_as_many_tokens() -> None:
    # Five tokens fewer: the baseline would have taken 1.2 - 5 * 0.1 s.
    arm = {SECOND: Timing(latency_s=0.35, ttft_s=0.1, tokens=6, replayed=3)}
    assert speedups(arm, BASE, [SECOND]) == pytest.approx([0.7 / 0.35])


def test_a_correction_never_takes_less_than_the_first_token() -> None:
    base = {SECOND: Timing(1.0, 0.9, 3, 0), FIRST: Timing(2.9, 0.9, 3, 0)}
    arm = {SECOND: Timing(0.5, 0.5, 1, 0)}
    # A step is (0.1 + 2.0) / 4 s on average; 1.0 - 2 * 0.525 s would be less than nothing.
    assert speedups(arm, base, [SECOND]) == pytest.approx([0.9 / 0.5])


def test_achieved_and_ideal_are_ratios_of_sums() -> None:
    keys = [FIRST, SECOND]
    assert achieved_speedup(REPLAYED, BASE, keys) == pytest.approx(3.3 / 2.9)
    # Prefill 1.0 + 0.1 s, 22 tokens, of which 16 were generated.
    assert ideal_speedup(REPLAYED, BASE, keys) == pytest.approx((1.1 + 2.2) / (1.1 + 1.6))


def test_the_ideal_without_hits_is_one() -> None:
    assert ideal_speedup(BASE, BASE, list(BASE)) == 1.0


def test_hit_ratio_is_over_tokens() -> None:
    arm = {FIRST: Timing(1.0, 0.1, 30, 0), SECOND: Timing(1.0, 0.1, 10, 10)}
    assert hit_ratio(arm, arm) == 0.25
    assert hit_ratio(arm, []) is None


def test_what_was_served_wholly_from_the_cache_is_not_counted() -> None:
    arm = {
        FIRST: Timing(1.0, 0.1, 10, 9),
        SECOND: Timing(0.01, 0.01, 10, 10),
        ("t", 0): Timing(0.01, 0.01, 0, 0),
    }
    assert counted(arm) == [FIRST, ("t", 0)]


def test_shares_of_equal_outputs() -> None:
    def outputs(*texts: str) -> dict[Key, Timing]:
        return {("s", i): Timing(1.0, 1.0, 1, 0, tuple(map(ord, text))) for i, text in enumerate(texts)}

    assert share_same(outputs("a", "b", "c", "c"), outputs("a", "b", "c", "d")) == 0.75
    assert share_distinct(outputs("a", "b", "c", "c")) == 0.75
    two_states = {**outputs("a"), ("t", 0): outputs("a")["s", 0]}
    assert share_distinct(two_states) == 1.0


def test_figures() -> None:
    stock = {FIRST: Timing(2.9, 1.1, 11, 0), SECOND: Timing(0.4, 0.2, 11, 0)}
    found = figures(REPLAYED, BASE, stock, [FIRST, SECOND])
    assert found.requests == 2
    assert found.hit_ratio == pytest.approx(6 / 22)
    assert found.tps_mean == pytest.approx((11 / 2.1 + 11 / 0.8) / 2)
    assert found.tps_p50 == found.tps_mean
    assert found.speedup_mean == found.speedup_median == pytest.approx(1.25)
    assert found.speedup_vs_stock_mean == pytest.approx((2.9 / 2.1 + 0.4 / 0.8) / 2)
    assert found.achieved_over_ideal == pytest.approx((3.3 / 2.9) / (3.3 / 2.7))


def test_figures_of_nothing_are_none() -> None:
    found = figures(REPLAYED, BASE, None, [])
    assert found.model_dump() == dict.fromkeys(found.model_dump()) | {"requests": 0}


def test_figures_without_stock() -> None:
    assert figures(REPLAYED, BASE, None, [SECOND]).speedup_vs_stock_mean is None


def test_entropy_of_a_fully_known_distribution() -> None:
    found = entropy([math.log(0.5), math.log(0.25), math.log(0.25)], vocabulary=3)
    assert found.low == found.high == pytest.approx(1.5 * math.log(2))


def test_entropy_of_a_certain_token_is_zero() -> None:
    assert entropy([0.0], vocabulary=1000) == Interval(0.0, 0.0)


def test_entropy_is_bounded_by_how_the_rest_may_be_spread() -> None:
    # Half the mass is known: two tokens of a quarter. The rest goes to 2 tokens of at most 1/4, hence 1/4 each.
    exact = entropy([math.log(0.25)] * 2, vocabulary=4)
    assert exact.low == pytest.approx(math.log(4))
    assert exact.high == pytest.approx(math.log(4))
    # With 8 left out it lies between two tokens of 1/4 and eight of 1/16.
    wide = entropy([math.log(0.25)] * 2, vocabulary=10)
    assert wide.low == pytest.approx(math.log(4))
    assert wide.high == pytest.approx(0.5 * math.log(4) + 0.5 * math.log(16))


@pytest.mark.parametrize("known", [1, 3, 20])
def test_entropy_bounds_hold_the_truth(known: int) -> None:
    weights = [1 / rank**1.5 for rank in range(1, 101)]
    probabilities = [weight / sum(weights) for weight in weights]
    truth = -sum(p * math.log(p) for p in probabilities)
    found = entropy([math.log(p) for p in probabilities[:known]], vocabulary=100)
    assert found.low <= truth <= found.high


def test_mean_of_intervals() -> None:
    assert mean_interval([Interval(0.0, 1.0), Interval(1.0, 4.0)]) == Interval(0.5, 2.5)
    assert mean_interval([]) is None


def test_crossing_is_interpolated() -> None:
    found = crossing([(2.0, 1.0), (0.0, 3.0), (1.0, 2.0)], 1.5)
    assert (found.kind, found.entropy) == ("interpolated", 1.5)


def test_crossing_takes_the_last_time_that_it_falls_below() -> None:
    found = crossing([(0.0, 2.0), (1.0, 1.0), (2.0, 2.0), (3.0, 1.0)], 1.5)
    assert (found.kind, found.entropy) == ("interpolated", 2.5)


def test_crossing_that_is_still_reached_at_the_end() -> None:
    found = crossing([(0.0, 2.0), (1.0, 1.8)], 1.5)
    assert (found.kind, found.entropy) == ("at least", 1.0)


@pytest.mark.parametrize("points", [[], [(0.0, 1.0), (1.0, 1.4)]])
def test_crossing_that_is_not_reached(points: list[tuple[float, float]]) -> None:
    found = crossing(points, 1.5)
    assert (found.kind, found.entropy) == ("not reached", None)


def test_overhead_compares_medians_of_decode_speed() -> None:
    def at(tps: float, ttft_s: float) -> Timing:
        return Timing(latency_s=ttft_s + 10 / tps, ttft_s=ttft_s, tokens=11, replayed=0)

    found = overhead(
        4,
        stock=[at(100, 0.1), at(50, 0.1), at(1, 0.1)],
        off=[at(40, 0.1), at(40, 0.2), at(40, 0.3)],
        recording=[at(40, 0.21), at(40, 0.21), at(80, 0.21)],
        variant=Variant("top_p", "proposer"),
    )
    assert (found.draw, found.adapter) == ("top_p", "proposer")
    assert found.stock_tps == pytest.approx(50)
    assert found.against_stock == pytest.approx(0.2)
    assert found.against_off == pytest.approx(0.0)
    assert found.miss_ms == pytest.approx(10)
