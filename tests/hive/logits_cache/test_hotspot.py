"""Hotspot scores against hand-computed ones, and the distance from exact sampling against enumeration."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head
from hive.server.logits_cache.hotspot import DECAY_STEPS, HotspotRule, row_uncertainty, select
from hive.server.logits_cache.packing import pack
from hive.server.logits_cache.policies import Hotspot
from hive.server.logits_cache.replay import Replay, Verdict
from hive.server.logits_cache.sampling import SamplingRule
from hive.server.logits_cache.trie import LogitsTrie, PrefixHash
from tests.hive.logits_cache.truth import whole_head

ALL = 1 << 30
PLAIN = SamplingRule.of(1.0, ALL, 1.0, 0.0)
BY_DEFAULT = HotspotRule()
CERTAIN, EVEN = [1.0, 0.0], [0.5, 0.5]


def whole(probabilities: list[float], temperature: float = 1.0) -> Head:
    with np.errstate(divide="ignore"):
        return whole_head(np.log(np.array(probabilities, dtype=np.float32)), temperature)


def cut(head: Head, size: int) -> Head:
    return Head(head.ids[:size], head.logits[:size], head.support, head.normalisers)


def hotspots(heads: list[Head], rule: HotspotRule = BY_DEFAULT) -> list[bool]:
    return select([row_uncertainty(head, 1.0) for head in heads], rule).tolist()


def hot_above(heads: list[Head], threshold: float, decay: float = DECAY_STEPS) -> list[bool]:
    return hotspots(heads, HotspotRule(threshold=threshold, decay=decay))


def test_uncertainty_is_entropy_times_the_doubt_in_the_favourite() -> None:
    assert row_uncertainty(whole([0.25, 0.5, 0.25]), 1.0) == pytest.approx(1.5 * math.log(2) * 0.5)
    assert row_uncertainty(whole([0.25] * 4), 1.0) == pytest.approx(math.log(4) * 0.75)
    assert row_uncertainty(whole(CERTAIN), 1.0) == 0.0


def test_uncertainty_is_that_of_the_sampling_temperature() -> None:
    """At T = 0.5 probabilities are squared: 4 to 1 becomes 16 to 1."""
    entropy = -(16 / 17 * math.log(16 / 17) + 1 / 17 * math.log(1 / 17))
    assert row_uncertainty(whole([0.8, 0.2], 0.5), 0.5) == pytest.approx(entropy / 17, rel=1e-5)


def test_a_tail_counts_as_spread_evenly_which_bounds_the_uncertainty_from_above() -> None:
    even = whole([0.5, 0.25, 0.125, 0.125])
    assert row_uncertainty(cut(even, 2), 1.0) == pytest.approx(row_uncertainty(even, 1.0))
    uneven = whole([0.5, 0.25, 0.2, 0.05])
    assert row_uncertainty(cut(uneven, 2), 1.0) > row_uncertainty(uneven, 1.0)


def test_heads_of_unknown_mass_and_empty_ones_have_an_uncertainty() -> None:
    head = whole([0.5, 0.25, 0.125, 0.125])
    known_at_one = cut(head, 2)
    assert row_uncertainty(known_at_one, 0.5) >= row_uncertainty(head, 0.5)
    unknown = Head(head.ids[:2], head.logits[:2], 4, {})
    # At the most, the two tokens left out are as likely as the last one kept.
    assert row_uncertainty(unknown, 1.0) == pytest.approx(row_uncertainty(whole([0.4, 0.2, 0.2, 0.2]), 1.0))
    empty = Head(head.ids[:0], head.logits[:0], 4, {1.0: 4.0})
    assert row_uncertainty(empty, 1.0) == pytest.approx(math.log(4) * 0.75)


def test_scores_fall_with_the_step_and_fill_the_unit_interval() -> None:
    """A decay of 1 / ln 2 steps halves the score at each: 1, 1/2, 1/4, less 1/4, over 3/4."""
    even, halving = [whole(EVEN)] * 3, 1 / math.log(2)
    assert hot_above(even, 0.0, halving) == hot_above(even, 1 / 3 - 1e-9, halving) == [True, True, False]
    assert (
        hot_above(even, 1 / 3 + 1e-9, halving) == hot_above(even, 1 - 1e-9, halving) == [True, False, False]
    )
    assert hot_above([whole(CERTAIN), whole(EVEN)], 1 - 1e-9, decay=1.0) == [False, True]


def test_outputs_whose_steps_are_all_alike_are_all_hot_or_all_cold() -> None:
    assert hot_above([whole(EVEN)], 1 - 1e-9) == [True]
    assert hot_above([whole(EVEN)] * 2, 1 - 1e-9, decay=math.inf) == [True, True]
    assert hot_above([whole(CERTAIN)] * 2, 0.0) == [False, False]
    assert hotspots([]) == []


def test_hotspots_lie_above_the_threshold_or_are_the_highest() -> None:
    heads = [whole(CERTAIN), whole([0.6, 0.4]), whole(EVEN), whole([0.9, 0.1])]
    assert hotspots(heads) == [False, True, True, False]
    assert hotspots(heads, HotspotRule(threshold=0.9)) == [False, False, True, False]
    assert hotspots(heads, HotspotRule(threshold=0.0)) == [False, True, True, True]
    assert hotspots(heads, HotspotRule(top_k=1)) == [False, False, True, False]
    assert hotspots(heads, HotspotRule(top_k=9)) == [False, True, True, True]


def test_of_equal_scores_the_earlier_step_is_hotter() -> None:
    heads = [whole(CERTAIN)] + [whole(EVEN)] * 3
    chosen = hotspots(heads, HotspotRule(top_k=2, decay=math.inf))
    assert chosen == [False, True, True, False]


Output = tuple[int, ...]
LENGTH, VOCABULARY = 4, 3


def distribution(row: NDArray[np.float32], rule: SamplingRule) -> list[float]:
    """The rule's next-token distribution, the slow way."""
    probabilities = np.exp((row - row.max()).astype(np.float64) / rule.temperature)
    probabilities /= probabilities.sum()
    kept, before = np.zeros(len(row)), 0.0
    for rank, i in enumerate(sorted(range(len(row)), key=lambda i: (-row[i], i))):
        if rank < rule.top_k and before <= rule.top_p:
            kept[i] = probabilities[i]
        before += probabilities[i]
    return [float(p) for p in kept / kept.sum()]


def outputs(
    rows: NDArray[np.float32],
    rule: SamplingRule,
    cached: Output | None,
    hot: NDArray[np.bool_],
    output: Output = (),
    mass: float = 1.0,
) -> Iterator[tuple[Output, float]]:
    """Every output with its probability; with a cached output, under hotspot sampling along it."""
    step = len(output)
    if step == LENGTH:
        yield output, mass
        return
    if cached is not None and output == cached[:step] and not hot[step]:
        yield from outputs(rows, rule, cached, hot, (*output, cached[step]), mass)
        return
    for token, p in enumerate(distribution(rows[output[-1] if output else -1], rule)):
        if p > 0.0:
            yield from outputs(rows, rule, cached, hot, (*output, token), mass * p)


@pytest.mark.parametrize(
    "rule", [PLAIN, SamplingRule.of(0.7, 2, 1.0, 0.0), SamplingRule.of(1.5, ALL, 0.8, 0.0)]
)
@pytest.mark.parametrize("policy", [HotspotRule(threshold=0.4), HotspotRule(top_k=1), HotspotRule(top_k=3)])
def test_the_divergence_that_replays_report_is_on_average_that_of_the_enumerated_distributions(
    rule: SamplingRule, policy: HotspotRule
) -> None:
    rng = np.random.default_rng(5)
    rows = (rng.normal(size=(VOCABULARY + 1, VOCABULARY)) * 1.5).astype(np.float32)
    exact = dict(outputs(rows, rule, None, np.ones(LENGTH, dtype=np.bool_)))
    cached = sorted(exact)[len(exact) // 2]
    heads = [whole_head(rows[token], rule.temperature) for token in (-1, *cached[:-1])]
    hot = select([row_uncertainty(head, rule.temperature) for head in heads], policy)
    hot[-1] = True  # No state is kept behind the last token, so there is none to follow.
    approximate = dict(outputs(rows, rule, cached, hot))
    assert sum(approximate.values()) == pytest.approx(1.0)
    divergence = sum(q * math.log(q / exact[output]) for output, q in approximate.items())

    trie = LogitsTrie(10**6)
    trie.insert("", [0], cached, {step: pack(head) for step, head in enumerate(heads)})
    start = trie.find(PrefixHash("", [0]).digest())
    estimates = []
    for seed in range(4000):
        replay = Replay(start, chosen := Hotspot(rule, seed, 0, policy))
        replay.run(lambda token, node: Verdict.CONTINUES, limit=1000)
        assert replay.stop is not None
        estimates.append(chosen.divergence)
    error = 4 * float(np.std(estimates)) / math.sqrt(len(estimates))
    assert np.mean(estimates) == pytest.approx(divergence, abs=error + 1e-6)
