"""Where the KV of a request's context comes from, token by token.

A request's row of slots has an *index* for each token, in the order in which later tokens see earlier ones, and each
token has a *position*, by which its key is rotated.  Ordinary requests have both alike; a choreography may leave gaps
between its messages, reorder them, or let them overlap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S")
"""A stored encoding."""


@dataclass(frozen=True, slots=True)
class Span(Generic[S]):
    """A run of a request's tokens that may be placed."""

    start: int
    """Index of the first token."""
    end: int
    """Index behind the last one."""
    position: int
    """Of the first token."""
    source: S | None
    """Its encoding; None where there is none, and the tokens have to be computed."""


@dataclass(frozen=True, slots=True)
class Piece(Generic[S]):
    """A run of tokens at consecutive positions that are placed (out of ``source``) or computed (``source`` is None)."""

    start: int
    end: int
    position: int
    source: S | None
    offset: int = 0
    """Of the first token within its encoding."""

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens with consecutive indices and positions that are computed together."""

    start: int
    end: int
    position: int
    row: int = 0
    """Whose tokens they are, where several requests are computed together: its place in the batch."""

    def __len__(self) -> int:
        return self.end - self.start

    def part(self, start: int, end: int) -> Run:
        """The tokens from one index to before another."""
        return Run(start, end, self.position + start - self.start, self.row)


def plan(spans: Sequence[Span[S]], begin: int, limit: int, *, to_the_end: bool) -> list[Piece[S]]:
    """Cover the context from ``begin`` on with pieces, without holes, up to the last token that is placed.

    Args:
        spans: in ascending order, disjoint.
        begin: index behind what the exact radix tree has already.
        limit: index before which pieces must end: a request computes at least its last token.
        to_the_end: whether the last span is covered even where it has no encoding.  The tokens of a choreography
            cannot be left to ordinary prefill, which would compute them at other positions.

    Returns:
        Pieces in ascending order; tokens between spans are computed, at the positions that follow their indices.
        Nothing where nothing is placed and nothing has to be covered.
    """
    pieces: list[Piece[S]] = []
    at = begin
    for span in spans:
        start, end = max(span.start, begin), min(span.end, limit)
        if start >= end or (span.source is None and not to_the_end):
            continue
        if start > at:
            pieces.append(Piece(at, start, at, None))
        offset = start - span.start
        pieces.append(Piece(start, end, span.position + offset, span.source, offset))
        at = end
    return pieces


def runs_of(pieces: Sequence[Piece[S]], recomputed: Sequence[int] = ()) -> list[Run]:
    """What has to be computed: pieces without a source, and the tokens of others whose indices are ``recomputed``.

    Args:
        pieces: ascending, without holes.
        recomputed: ascending.

    Returns:
        Ascending runs, each as long as indices and positions go on by one.
    """
    runs: list[Run] = []
    at = 0
    for piece in pieces:
        shift = piece.position - piece.start
        if piece.source is None:
            _extend(runs, Run(piece.start, piece.end, piece.position))
        while at < len(recomputed) and recomputed[at] < piece.end:
            index = recomputed[at]
            if piece.source is not None:
                _extend(runs, Run(index, index + 1, index + shift))
            at += 1
    return runs


def _extend(runs: list[Run], run: Run) -> None:
    """Add a run, to the last one where it goes on from it."""
    last = runs[-1] if runs else None
    if last is not None and (last.end, last.position + len(last)) == (run.start, run.position):
        runs[-1] = Run(last.start, run.end, last.position)
    else:
        runs.append(run)


def passes(runs: Sequence[Run], most_rows: int, most_tokens: int) -> list[list[Run]]:
    """Split runs among forward passes of at most so many rows and tokens, in their order.

    Rows of one pass go through the layers together, so each sees the KV of those before it; those of earlier passes
    are complete by then.  A run that is longer than a pass is cut: behind a cut, tokens see what is before it.  So
    the runs of one request must be ascending.
    """
    if most_rows < 1 or most_tokens < 1:
        raise ValueError(f"a pass needs room for a token, got {most_rows} rows and {most_tokens} tokens")
    found: list[list[Run]] = []
    rows: list[Run] = []
    tokens = 0
    for run in runs:
        at = run.start
        while at < run.end:
            if len(rows) == most_rows or tokens == most_tokens:
                found.append(rows)
                rows, tokens = [], 0
            end = min(run.end, at + most_tokens - tokens)
            rows.append(run.part(at, end))
            tokens += end - at
            at = end
    return [*found, rows] if rows else found


class Intervals:
    """A set of indices, as ascending disjoint runs."""

    def __init__(self, runs: list[tuple[int, int]]) -> None:
        self._runs = [(start, end) for start, end in runs if start < end]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._runs)

    def has(self, start: int, end: int) -> bool:
        """Whether all indices of a run are in the set."""
        at = start
        for first, behind in self._runs:
            if first <= at < behind:
                at = behind
        return at >= end

    def take(self, start: int, end: int) -> None:
        """Take a run out."""
        rest = []
        for first, behind in self._runs:
            rest += [(first, min(behind, start)), (max(first, end), behind)]
        self._runs = [(first, behind) for first, behind in rest if first < behind]


def all_chosen(piece: Piece[Any], chosen: Sequence[int]) -> bool:
    """Whether every token of a piece is computed again (``chosen`` ascends), so that nothing of it is placed."""
    first = bisect_left(chosen, piece.start)
    return bisect_left(chosen, piece.end) - first == len(piece)
