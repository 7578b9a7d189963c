"""Hive's sampler against SGLang's own: two samples of 100,000 tokens each, told apart or not by a chi-square test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sglang.srt.layers.sampler import sampling_from_probs_torch, top_k_top_p_min_p_sampling_from_probs_torch

from hive.server.logits_cache.device_sampling import draw_rows
from hive.server.logits_cache.head import Head
from hive.server.logits_cache.sampling import SamplingRule, draw_live, uniform
from tests.hive.logits_cache.truth import whole_head

ALL = 1 << 30
COUNT = 100_000
VOCABULARY = 50
HEAD_SIZE = 24
"""So short that draws fall into the tail as well, and that cuts end there."""

REJECT = 1e-5
"""Seeds are fixed: a p-value below this comes once in 4,000 choices of them, over the two tests of each rule."""

RULES = {
    "cold": SamplingRule.of(0.3, ALL, 1.0, 0.0),
    "plain": SamplingRule.of(1.0, ALL, 1.0, 0.0),
    "hot": SamplingRule.of(2.0, ALL, 1.0, 0.0),
    "greedy": SamplingRule.of(1.0, 1, 1.0, 0.0),
    "top-k": SamplingRule.of(1.0, 7, 1.0, 0.0),
    "top-p": SamplingRule.of(1.0, ALL, 0.8, 0.0),
    "top-p beyond the head": SamplingRule.of(2.0, ALL, 0.92, 0.0),
    "min-p": SamplingRule.of(1.0, ALL, 1.0, 0.1),
    "min-p beyond the head": SamplingRule.of(2.0, ALL, 1.0, 0.08),
    "top-k and top-p": SamplingRule.of(0.7, 12, 0.9, 0.0),
    "top-p and min-p": SamplingRule.of(1.2, ALL, 0.9, 0.05),
    "all three, top-k beyond the head": SamplingRule.of(2.0, 30, 0.98, 0.01),
}

Counts = NDArray[np.int64]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Rows of 50 tokens are not worth sharing out: on busy cores it takes ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def row() -> NDArray[np.float32]:
    return (np.random.default_rng(24).normal(size=VOCABULARY) * 2).astype(np.float32)


def p_value(one: Counts, other: Counts) -> float:
    """Of Pearson's test that two samples of one size come from one distribution.

    Rare tokens are put together until each cell expects at least five of either sample.
    """
    assert one.sum() == other.sum()
    cells: list[tuple[int, int]] = []
    a = b = 0
    for token in np.argsort(one + other, kind="stable").tolist():
        a, b = a + int(one[token]), b + int(other[token])
        if a + b >= 10:
            cells.append((a, b))
            a = b = 0
    cells[0] = (cells[0][0] + a, cells[0][1] + b)
    if len(cells) == 1:
        return 1.0
    statistic = sum((a - b) ** 2 / (a + b) for a, b in cells)
    halves = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def count(tokens: NDArray[np.int64] | torch.Tensor) -> Counts:
    return np.bincount(np.asarray(tokens), minlength=VOCABULARY)


def of_sglang(row: NDArray[np.float32], rule: SamplingRule) -> Counts:
    torch.manual_seed(5)
    probabilities = torch.softmax(torch.tensor(row) / rule.temperature, dim=-1).repeat(COUNT, 1)
    if rule.top_k >= VOCABULARY and not rule.truncates:
        return count(sampling_from_probs_torch(probabilities))
    tokens = top_k_top_p_min_p_sampling_from_probs_torch(
        probabilities,
        torch.full((COUNT,), rule.top_k),
        torch.full((COUNT,), rule.top_p),
        torch.full((COUNT,), rule.min_p),
        rule.min_p > 0.0,
        None,
        torch.zeros(COUNT, dtype=torch.int64),
    )
    return count(tokens)


def of_host(
    row: NDArray[np.float32], rule: SamplingRule, position: int = 0, bend: Callable[[float], float] = float
) -> Counts:
    """What replay draws, and live sampling on a CPU where the head does not decide; ``bend`` is there to spoil it."""
    whole = whole_head(row, rule.temperature)
    head = Head(whole.ids[:HEAD_SIZE], whole.logits[:HEAD_SIZE], whole.support, whole.normalisers)
    tokens = [draw_live(head, lambda: row, rule, bend(uniform(seed, position))) for seed in range(COUNT)]
    return count(np.array(tokens))


def of_device(row: NDArray[np.float32], rule: SamplingRule, position: int) -> Counts:
    """What live sampling on a GPU draws."""
    drawn = draw_rows(
        torch.tensor(row).expand(COUNT, -1),
        torch.full((COUNT,), rule.temperature),
        torch.full((COUNT,), rule.top_k),
        torch.full((COUNT,), rule.top_p),
        torch.full((COUNT,), rule.min_p),
        torch.arange(COUNT),
        torch.full((COUNT,), position),
        HEAD_SIZE,
    )
    return count(drawn.tokens)


@pytest.mark.parametrize("name", RULES)
def test_tokens_are_distributed_as_sglang_distributes_them(row: NDArray[np.float32], name: str) -> None:
    theirs = of_sglang(row, RULES[name])
    # Other positions are other random numbers, so that no two tests repeat each other's luck.
    position = 2 * list(RULES).index(name)
    for ours in (of_host(row, RULES[name], position), of_device(row, RULES[name], position + 1)):
        assert ((ours > 0) <= (theirs > 0) | (ours < 20)).all(), "a token that SGLang cuts off"
        assert p_value(ours, theirs) > REJECT


def test_random_numbers_bent_by_a_little_are_caught(row: NDArray[np.float32]) -> None:
    rule = RULES["plain"]
    assert p_value(of_host(row, rule, bend=lambda u: u**1.05), of_sglang(row, rule)) < REJECT


@pytest.mark.parametrize("tokens_off", [-1, 1])
def test_a_nucleus_of_one_token_more_or_less_is_caught(row: NDArray[np.float32], tokens_off: int) -> None:
    rule = RULES["top-p"]
    head = whole_head(row, rule.temperature)
    weights = head.weights(rule.temperature)
    nucleus = int((np.cumsum(weights) - weights <= rule.top_p * weights.sum()).sum())
    wrong = SamplingRule.of(rule.temperature, nucleus + tokens_off, 1.0, 0.0)
    assert p_value(of_host(row, wrong), of_sglang(row, rule)) < REJECT


def test_a_temperature_off_by_five_percent_is_caught(row: NDArray[np.float32]) -> None:
    """About as fine as 100,000 draws tell: three percent is not."""
    wrong = SamplingRule.of(1.05, ALL, 1.0, 0.0)
    assert p_value(of_host(row, wrong), of_sglang(row, RULES["plain"])) < REJECT
