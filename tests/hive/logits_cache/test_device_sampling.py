"""The batched twin of the sampler draws the same tokens as the scalar one."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.server.logits_cache.device_sampling import CHUNK, draw_rows, uniform_rows
from hive.server.logits_cache.head import Head
from hive.server.logits_cache.sampling import SamplingRule, draw_live, probability, uniform
from tests.hive.logits_cache.truth import draw_row, whole_head

ALL = 1 << 30


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31)), min_size=1, max_size=20))
def test_random_numbers_are_the_same_to_the_bit(pairs: list[tuple[int, int]]) -> None:
    seeds, positions = (torch.tensor(column, dtype=torch.int64) for column in zip(*pairs, strict=True))
    assert uniform_rows(seeds, positions).tolist() == [uniform(*pair) for pair in pairs]


rules = st.builds(
    SamplingRule.of,
    st.sampled_from([0.3, 0.7, 1.0, 2.0]),
    st.sampled_from([1, 3, ALL]),
    st.sampled_from([0.2, 0.9, 1.0]),
    st.sampled_from([0.0, 0.1]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(rules, min_size=1, max_size=6),
    st.integers(0, 2**32),
    st.sampled_from([(0.0, 0), (0.5, 0), (0.0, 1)]),
)
def test_tokens_are_those_of_the_scalar_sampler(
    batch: list[SamplingRule], seed: int, shape: tuple[float, int]
) -> None:
    forbidden, decimals = shape
    rng = np.random.default_rng(seed)
    rows = np.round(rng.normal(size=(len(batch), 50)) * 3, decimals or 6).astype(np.float32)
    rows[:, 1:][rng.random((len(batch), 49)) < forbidden] = -np.inf
    seeds = rng.integers(0, 2**63 - 1, len(batch))
    drawn = draw_rows(
        torch.tensor(rows),
        torch.tensor([rule.temperature for rule in batch]),
        torch.tensor([rule.top_k for rule in batch]),
        torch.tensor([rule.top_p for rule in batch]),
        torch.tensor([rule.min_p for rule in batch]),
        torch.tensor(seeds),
        torch.arange(len(batch)),
        head_size=8,
    )
    for i, rule in enumerate(batch):
        u = uniform(int(seeds[i]), i)
        whole = whole_head(rows[i], rule.temperature)
        cut = Head.select(whole.ids[:8], whole.logits[:8], whole.support, whole.normalisers)
        if not (rule.greedy and len(cut.ids) == 0):
            token = int(drawn.tokens[i])
            assert token == draw_row(rows[i], rule, u, 8)
            row = rows[i]
            expected = probability(cut, lambda row=row: row, rule, token)  # type: ignore[misc]
            assert abs(float(drawn.scalars[i, 4]) - expected) < 1e-6
        assert drawn.heads[i, 0].tolist()[: len(cut.ids)] == cut.ids.tolist()
        assert drawn.scalars[i, 0] == len(cut.trimmed().ids)
        assert drawn.scalars[i, 1] == whole.support
        assert abs(float(drawn.scalars[i, 3]) / whole.normalisers[rule.temperature] - 1) < 1e-6


@settings(max_examples=100, deadline=None)
@given(rules, st.integers(0, 2**32), st.sets(st.integers(0, 49), max_size=50))
def test_what_is_used_up_is_left_out(rule: SamplingRule, seed: int, used: set[int]) -> None:
    row = (np.random.default_rng(seed).normal(size=50) * 3).astype(np.float32)
    remaining = np.ones((1, 50), dtype=np.float32)
    remaining[0, list(used)] = 0.0
    drawn = draw_rows(
        torch.tensor(row[None]),
        torch.tensor([rule.temperature]),
        torch.tensor([rule.top_k]),
        torch.tensor([rule.top_p]),
        torch.tensor([rule.min_p]),
        torch.tensor([seed]),
        torch.tensor([0]),
        head_size=8,
        remaining=torch.tensor(remaining),
    )
    whole = whole_head(row, rule.temperature)
    head = Head.select(whole.ids[:8], whole.logits[:8], whole.support, whole.normalisers)
    factors = dict.fromkeys(used, 0.0)
    left = [token for token in range(50) if token not in used and probability(head, lambda: row, rule, token)]
    assert int(drawn.tokens[0]) in left or not left
    if left or not (rule.greedy and len(head.ids) == 0):
        assert int(drawn.tokens[0]) == draw_live(head, lambda: row, rule, uniform(seed, 0), factors)


def test_bad_rows_stop_nobody_and_large_batches_are_cut() -> None:
    rows = torch.zeros(2 * CHUNK + 1, 16)
    rows[0] = torch.nan
    rows[1] = -torch.inf
    rows[2, 5] = torch.inf
    rows[3, 7] = 100.0
    count = len(rows)
    ones = torch.ones(count)
    drawn = draw_rows(
        rows, ones, torch.full((count,), ALL), ones, 0 * ones, torch.arange(count), torch.arange(count), 4
    )
    assert drawn.tokens.shape == (count,)
    assert drawn.tokens[2] == 5
    assert drawn.tokens[3] == 7
    assert ((drawn.tokens >= 0) & (drawn.tokens < 16)).all()
