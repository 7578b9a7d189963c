"""Plans against what they say of each token, one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.kv_segments.plan import Piece, Run, Span, passes, plan, runs_of


@st.composite
def span_lists(draw: st.DrawFn) -> list[Span[str]]:
    """Ascending and disjoint, with and without encodings, at any positions."""
    found: list[Span[str]] = []
    at = 0
    for number in range(draw(st.integers(0, 5))):
        start = at + draw(st.integers(0, 4))
        at = start + draw(st.integers(1, 6))
        source = f"s{number}" if draw(st.booleans()) else None
        position = draw(st.sampled_from([start, start + 1, 0, 7, 30]))
        found.append(Span(start, at, position, source))
    return found


@st.composite
def piece_lists(draw: st.DrawFn) -> list[Piece[str]]:
    """Without holes; some go on where the one before ended, some at other positions."""
    found: list[Piece[str]] = []
    begin = at = draw(st.integers(0, 3))
    position = begin
    for number in range(draw(st.integers(0, 5))):
        end = at + draw(st.integers(1, 5))
        start = position if draw(st.booleans()) else draw(st.integers(0, 40))
        found.append(Piece(at, end, start, f"s{number}" if draw(st.booleans()) else None))
        position = start + end - at
        at = end
    return found


@st.composite
def run_lists(draw: st.DrawFn) -> list[Run]:
    found: list[Run] = []
    at = 0
    for _ in range(draw(st.integers(0, 6))):
        start = at + draw(st.integers(0, 3))
        at = start + draw(st.integers(1, 9))
        found.append(Run(start, at, draw(st.integers(0, 50)), draw(st.integers(0, 2))))
    return found


@given(span_lists(), st.integers(0, 30), st.integers(0, 45), st.booleans())
def test_pieces_say_of_each_token_what_its_span_does(
    spans: list[Span[str]], begin: int, limit: int, to_the_end: bool
) -> None:
    pieces = plan(spans, begin, limit, to_the_end=to_the_end)
    of_token = {index: span for span in spans for index in range(span.start, span.end)}
    covered = [index for piece in pieces for index in range(piece.start, piece.end)]
    last = max(
        (i for i, span in of_token.items() if begin <= i < limit and (span.source is not None or to_the_end)),
        default=begin - 1,
    )
    assert covered == list(range(begin, last + 1))
    for piece in pieces:
        assert len(piece) > 0
        for index in range(piece.start, piece.end):
            span = of_token.get(index)
            position = piece.position + index - piece.start
            if piece.source is None:
                # Tokens of no span, and, where that cannot be left to ordinary prefill, of one that is not stored.
                assert span is None or span.source is None
                own = span is not None and to_the_end
                assert position == (span.position + index - span.start if own and span else index)
            else:
                assert span is not None
                assert piece.source == span.source
                assert piece.offset + index - piece.start == index - span.start
                assert position == span.position + index - span.start


def test_without_encodings_there_is_nothing_to_place_but_for_choreographies() -> None:
    spans: list[Span[str]] = [Span(2, 4, 9, None), Span(6, 8, 0, None)]
    assert plan(spans, 0, 10, to_the_end=False) == []
    assert plan(spans, 0, 10, to_the_end=True) == [
        Piece(0, 2, 0, None),
        Piece(2, 4, 9, None),
        Piece(4, 6, 4, None),
        Piece(6, 8, 0, None),
    ]


def test_what_the_exact_tree_has_of_a_span_is_not_placed() -> None:
    assert plan([Span(2, 8, 12, "a")], 5, 7, to_the_end=False) == [Piece(5, 7, 15, "a", 3)]


@given(piece_lists(), st.data())
def test_runs_are_what_each_token_says_of_itself(pieces: list[Piece[str]], data: st.DataObject) -> None:
    tokens = [index for piece in pieces for index in range(piece.start, piece.end)]
    recomputed = sorted(data.draw(st.sets(st.sampled_from(tokens)))) if tokens else []
    wanted = [
        (index, piece.position + index - piece.start)
        for piece in pieces
        for index in range(piece.start, piece.end)
        if piece.source is None or index in recomputed
    ]
    runs = runs_of(pieces, recomputed)
    assert [(run.start + at, run.position + at) for run in runs for at in range(len(run))] == wanted
    for left, right in pairwise(runs):
        # Each is as long as it can be.
        assert (left.end, left.position + len(left)) != (right.start, right.position)


def test_a_run_goes_on_over_pieces_whose_positions_do() -> None:
    pieces = [Piece(0, 3, 0, None), Piece(3, 6, 3, "a"), Piece(6, 8, 6, None), Piece(8, 9, 20, None)]
    assert runs_of(pieces) == [Run(0, 3, 0), Run(6, 8, 6), Run(8, 9, 20)]
    assert runs_of(pieces, [3, 4, 5]) == [Run(0, 8, 0), Run(8, 9, 20)]


@given(run_lists(), st.integers(1, 4), st.integers(1, 12))
def test_passes_keep_tokens_and_order_within_their_limits(
    runs: list[Run], most_rows: int, most_tokens: int
) -> None:
    found = passes(runs, most_rows, most_tokens)

    def tokens(rows: list[Run]) -> list[tuple[int, int, int]]:
        return [(run.row, run.start + at, run.position + at) for run in rows for at in range(len(run))]

    assert tokens([run for rows in found for run in rows]) == tokens(runs)
    for rows in found:
        assert 1 <= len(rows) <= most_rows
        assert all(len(run) > 0 for run in rows)
        assert sum(map(len, rows)) <= most_tokens
    for rows in found[:-1]:
        # None ends before it is full.
        assert len(rows) == most_rows or sum(map(len, rows)) == most_tokens


def test_a_long_run_is_cut_where_a_pass_is_full() -> None:
    runs = [Run(0, 2, 5, 1), Run(4, 10, 0, 1)]
    assert passes(runs, 8, 4) == [[Run(0, 2, 5, 1), Run(4, 6, 0, 1)], [Run(6, 10, 2, 1)]]


def test_no_runs_are_no_passes() -> None:
    assert passes([], 1, 1) == []


@pytest.mark.parametrize(("rows", "tokens"), [(0, 1), (1, 0), (-1, 5)])
def test_a_pass_without_space_is_refused(rows: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="needs at least one row and one token"):
        passes([Run(0, 1, 0)], rows, tokens)
