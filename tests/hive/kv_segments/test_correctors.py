"""Correctors against what they say they are."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.flags.server_args import HiveServerArgs
from hive.server.kv_segments import correctors as package
from hive.server.kv_segments.correctors import corrector_of
from hive.server.kv_segments.correctors.base import Corrector, PlacedRun
from hive.server.kv_segments.correctors.blend import Blend
from hive.server.kv_segments.correctors.first_k import FirstK
from hive.server.kv_segments.correctors.recompute_all import RecomputeAll
from hive.server.kv_segments.correctors.recompute_none import RecomputeNone
from hive.server.kv_segments.request import spans_request
from hive.server.request_tag import RequestError

SHARES = st.one_of(st.sampled_from([0.0, 0.01, 0.15, 0.5, 1.0]), st.floats(0, 1))


@st.composite
def placed_runs(draw: st.DrawFn) -> list[PlacedRun]:
    found: list[PlacedRun] = []
    at = 0
    for _ in range(draw(st.integers(0, 4))):
        start = at + draw(st.integers(0, 5))
        at = start + draw(st.integers(1, 12))
        found.append(PlacedRun(start, at, draw(st.integers(0, 9))))
    return found


correctors = st.one_of(
    st.just(RecomputeNone()),
    st.just(RecomputeAll()),
    st.builds(FirstK, tokens=st.integers(1, 20)),
    st.builds(FirstK, share=SHARES),
    st.builds(Blend, SHARES),
    st.builds(Blend, SHARES, st.integers(1, 8)),
)


def tokens_of(placed: list[PlacedRun]) -> list[int]:
    return [index for run in placed for index in range(run.start, run.end)]


def deviations(draw: st.DrawFn | st.DataObject, tokens: int) -> np.ndarray:
    pick = draw.draw if isinstance(draw, st.DataObject) else draw
    few = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0]), min_size=tokens, max_size=tokens)
    return np.array(pick(few), dtype=np.float32)


@given(correctors, placed_runs(), st.data())
def test_what_is_chosen_ascends_is_placed_and_is_no_more_than_said(
    corrector: Corrector, placed: list[PlacedRun], data: st.DataObject
) -> None:
    tokens = tokens_of(placed)
    deviation = deviations(data, len(tokens)) if corrector.probes else None
    chosen = corrector.select(placed, deviation)
    assert all(type(index) is int for index in chosen)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(tokens)
    assert len(chosen) <= corrector.most(placed) <= len(tokens)


@given(placed_runs())
def test_nothing_and_everything(placed: list[PlacedRun]) -> None:
    assert RecomputeNone().select(placed) == []
    assert RecomputeNone().most(placed) == 0
    assert RecomputeAll().select(placed) == tokens_of(placed)
    assert RecomputeAll().most(placed) == len(tokens_of(placed))


@given(placed_runs(), st.integers(1, 15))
def test_the_first_tokens_of_each_segment(placed: list[PlacedRun], tokens: int) -> None:
    corrector = FirstK(tokens=tokens)
    wanted = [
        index
        for run in placed
        for index in range(run.start, run.end)
        if run.offset + index - run.start < tokens
    ]
    assert corrector.select(placed) == wanted
    assert corrector.most(placed) == len(wanted)


@given(placed_runs(), SHARES)
def test_the_first_share_of_each_segment(placed: list[PlacedRun], share: float) -> None:
    wanted: list[int] = []
    for run in placed:
        first = math.ceil(share * (run.offset + run.end - run.start))
        wanted += [index for index in range(run.start, run.end) if run.offset + index - run.start < first]
    assert FirstK(share=share).select(placed) == wanted
    assert FirstK(share=share).most(placed) == len(wanted)


def test_a_share_is_rounded_up() -> None:
    assert FirstK(share=0.15).select([PlacedRun(10, 11), PlacedRun(20, 30)]) == [10, 20, 21]


def test_what_the_exact_tree_served_of_a_beginning_is_not_made_up_for() -> None:
    assert FirstK(tokens=4).select([PlacedRun(10, 20, offset=3)]) == [10]
    assert FirstK(tokens=4).select([PlacedRun(10, 20, offset=4)]) == []
    assert FirstK(share=0.5).select([PlacedRun(10, 14, offset=4)]) == []


@given(placed_runs(), SHARES, st.data())
def test_blend_takes_no_token_that_deviates_less_than_one_it_leaves(
    placed: list[PlacedRun], share: float, data: st.DataObject
) -> None:
    tokens = tokens_of(placed)
    deviation = deviations(data, len(tokens))
    chosen = Blend(share).select(placed, deviation)
    wanted = int(len(tokens) * share)
    assert len(chosen) == (max(1, wanted) if tokens and share else 0)
    of_token = dict(zip(tokens, deviation, strict=True))
    left = [of_token[index] for index in tokens if index not in chosen]
    assert not chosen or not left or min(of_token[index] for index in chosen) >= max(left)


@given(placed_runs(), SHARES, st.integers(1, 8), st.data())
def test_blend_by_blocks_takes_the_worst_ones_whole(
    placed: list[PlacedRun], share: float, block: int, data: st.DataObject
) -> None:
    tokens = tokens_of(placed)
    deviation = deviations(data, len(tokens))
    chosen = Blend(share, block).select(placed, deviation)
    # A block is of one run, and begins where a multiple of its length is in the segment.
    blocks: dict[tuple[int, int], list[int]] = {}
    for number, run in enumerate(placed):
        for index in range(run.start, run.end):
            blocks.setdefault((number, (run.offset + index - run.start) // block), []).append(index)
    of_token = dict(zip(tokens, deviation, strict=True))
    weights = {at: sum(float(of_token[index]) for index in found) for at, found in blocks.items()}
    taken = [at for at, found in blocks.items() if found[0] in chosen]
    assert chosen == sorted(index for at in taken for index in blocks[at])
    wanted = max(1, int(len(tokens) * share)) if tokens and share else 0
    assert len(chosen) >= wanted
    left = [weights[at] for at in blocks if at not in taken]
    assert not taken or not left or min(weights[at] for at in taken) >= max(left)
    # Without the lightest of them it would have been too few: the last to be taken was needed.
    assert not taken or any(
        len(chosen) - len(blocks[at]) < wanted
        for at in taken
        if weights[at] == min(weights[other] for other in taken)
    )


def test_blocks_are_aligned_to_the_segment_not_to_the_run() -> None:
    # The exact tree had the first three tokens of the segment: its second block begins with the second one placed.
    placed = [PlacedRun(100, 110, offset=3)]
    deviation = np.zeros(10, np.float32)
    deviation[4] = 1
    assert Blend(0.1, 4).select(placed, deviation) == [101, 102, 103, 104]
    deviation[0] = 2
    assert Blend(0.1, 4).select(placed, deviation) == [100]


def test_of_equal_tokens_blend_still_takes_as_many_as_it_says() -> None:
    placed = [PlacedRun(0, 10), PlacedRun(12, 22)]
    assert len(Blend(0.3).select(placed, np.zeros(20, np.float32))) == 6
    assert Blend(0.3, 4).select(placed, np.zeros(20, np.float32)) == list(range(8))


@pytest.mark.parametrize("deviation", [None, np.zeros(3, np.float32)])
def test_blend_without_the_deviation_of_every_token_is_an_error(deviation: np.ndarray | None) -> None:
    with pytest.raises(ValueError, match="every placed token"):
        Blend().select([PlacedRun(0, 4)], deviation)


def test_only_blend_probes() -> None:
    assert [c.probes for c in (Blend(), FirstK(tokens=1), RecomputeAll(), RecomputeNone())] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("first-k", FirstK(share=0.15)),
        ({"kind": "first-k"}, FirstK(share=0.15)),
        ({"kind": "first-k", "share": 0}, FirstK(share=0)),
        ({"kind": "first-k", "tokens": 16}, FirstK(tokens=16)),
        ("blend", Blend(0.15)),
        ({"kind": "blend", "share": 1, "block": 32}, Blend(1, 32)),
    ],
)
def test_correctors_by_their_names(spec: object, wanted: Corrector) -> None:
    assert corrector_of(spec) == wanted


def test_correctors_without_settings_by_their_names() -> None:
    for spec in ("none", {"kind": "none"}):
        assert isinstance(corrector_of(spec), RecomputeNone)
    for spec in ("recompute-all", {"kind": "recompute-all"}):
        assert isinstance(corrector_of(spec), RecomputeAll)


MODULE = """
from hive.server.kv_segments.correctors.base import Corrector, check_count


class EveryNth(Corrector):
    kind = "every-nth"
    settings = {"nth": check_count}

    def __init__(self, nth=2):
        self.nth = nth

    def select(self, placed, deviation=None):
        return [index for run in placed for index in range(run.start, run.end, self.nth)]

    def most(self, placed):
        return len(self.select(placed))
"""


def test_a_new_corrector_is_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "every_nth.py").write_text(MODULE)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    package.correctors.cache_clear()
    try:
        request = spans_request({"corrector": {"kind": "every-nth", "nth": 3}}, 9, "hive_segments")
        assert corrector_of(request.corrector).select([PlacedRun(2, 9)]) == [2, 5, 8]
        assert HiveServerArgs(kv_corrector="every-nth").corrector == "every-nth"
        with pytest.raises(RequestError, match=r"corrector\.share is unknown: 'every-nth' takes nth"):
            corrector_of({"kind": "every-nth", "share": 0.5})
    finally:
        package.correctors.cache_clear()
        del sys.modules[f"{package.__name__}.every_nth"]
