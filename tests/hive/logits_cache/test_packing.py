"""Heads as bytes: nothing is lost, and how much they take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head
from hive.server.logits_cache.packing import pack, pack_rows, unpack
from tests.hive.logits_cache.truth import whole_head


def bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Numbers rounded towards zero to what bf16 can hold."""
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def same(one: Head, other: Head) -> bool:
    return (
        np.array_equal(one.ids, other.ids)
        and np.array_equal(one.logits, other.logits)
        and one.support == other.support
        and one.normalisers == other.normalisers
    )


values = st.lists(
    st.one_of(st.floats(-60, 60, width=32), st.sampled_from([0.0, -0.0, -np.inf, 1e-30, -1e-30])),
    min_size=1,
    max_size=80,
).filter(lambda numbers: max(numbers) > -np.inf)


@given(
    values,
    st.booleans(),
    st.sampled_from([1, 60_000, 2_000_000]),
    st.sampled_from([{}, {0.5: 2.0, 1.0: 3.5}]),
)
def test_a_head_comes_back_equal(
    numbers: list[float], coarse: bool, spread: int, normalisers: dict[float, float]
) -> None:
    row = np.array(numbers, dtype=np.float32)
    row = bf16(row) if coarse else row
    ids = np.arange(len(row)) * max(1, spread // len(row))
    head = Head.select(ids, row, int((row > -np.inf).sum()), normalisers)
    assert same(unpack(pack(head)), head)


@pytest.mark.parametrize("coarse", [True, False])
@pytest.mark.parametrize("vocabulary", [5_000, 151_936])
def test_a_whole_row_comes_back_equal_and_pays_for_no_ids(coarse: bool, vocabulary: int) -> None:
    row = (np.random.default_rng(0).normal(size=vocabulary) * 4).astype(np.float32)
    row = bf16(row) if coarse else row
    row[::7] = -np.inf
    head = whole_head(row, 1.0)
    packed = pack(head)
    assert same(unpack(packed), head)
    assert len(packed) <= vocabulary * (2 if coarse else 4) + 64


def test_an_empty_head_comes_back_empty() -> None:
    head = Head(np.empty(0, np.int32), np.empty(0, np.float32), 9, {1.0: 9.0})
    assert same(unpack(pack(head)), head)


def test_a_bf16_head_of_a_large_vocabulary_takes_four_bytes_a_token() -> None:
    rng = np.random.default_rng(0)
    logits = bf16(-np.sort(-rng.normal(size=300).astype(np.float32) * 3 - 20))
    head = Head(rng.permutation(151_936)[:300].astype(np.int32), logits, 151_936, {1.0: 3.0})
    assert len(pack(head)) < 4 * 300 + 60


@given(st.lists(values, min_size=1, max_size=4), st.booleans(), st.sampled_from([1, 2_000_000]), st.data())
def test_many_rows_are_packed_as_one_is(
    rows: list[list[float]], coarse: bool, spread: int, data: st.DataObject
) -> None:
    k = 80
    ids, logits = np.zeros((len(rows), k), np.int32), np.full((len(rows), k), -np.inf, np.float32)
    heads, scalars = [], []
    for i, numbers in enumerate(rows):
        row = np.array(numbers, dtype=np.float32)
        row = bf16(row) if coarse else row
        places = np.arange(len(row)) * max(1, spread // k)
        head = Head.select(places, row, int((row > -np.inf).sum()), {0.5: 2.0})
        size = data.draw(st.integers(0, len(head.ids)))
        ids[i, : len(head.ids)], logits[i, : len(head.ids)] = head.ids, head.logits
        heads.append(Head(head.ids[:size], head.logits[:size], head.support, head.normalisers))
        scalars.append((size, head.support, 0.5, 2.0))
    for packed, head in zip(pack_rows(ids, logits, scalars), heads, strict=True):
        assert (packed is None) == (len(head.ids) == 0)
        assert packed is None or same(unpack(packed), head)
