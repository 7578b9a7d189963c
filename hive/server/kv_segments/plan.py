"""Plans, token by token, where the KV of a request's context comes from.

Each token of a request has an *index* in the request's row of slots, in the order in which later tokens see earlier
ones, and a *position*, by which its key is rotated.  In ordinary requests both are equal.  A choreography may leave
gaps between its messages, reorder them, or let them overlap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S")
"""The type of a stored encoding."""


@dataclass(frozen=True, slots=True)
class Span(Generic[S]):
    """A run of a request's tokens that may be placed, which means: taken from a stored encoding."""

    start: int
    """Index of the first token."""
    end: int
    """Index behind the last one."""
    position: int
    """Position of the first token."""
    source: S | None
    """The encoding; None if there is none and the tokens must be computed."""


@dataclass(frozen=True, slots=True)
class Piece(Generic[S]):
    """A run of tokens at consecutive positions, either placed from ``source`` or computed (``source`` is None)."""

    start: int
    end: int
    position: int
    source: S | None
    offset: int = 0
    """Index of the first token within its encoding."""

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens with consecutive indices and positions, computed together."""

    start: int
    end: int
    position: int
    row: int = 0
    """Index of the request within the batch, if several requests are computed together."""

    def __len__(self) -> int:
        return self.end - self.start

    def part(self, start: int, end: int) -> Run:
        """Return the tokens from index ``start`` up to but excluding ``end``."""
        return Run(start, end, self.position + start - self.start, self.row)


def plan(spans: Sequence[Span[S]], begin: int, limit: int, *, to_the_end: bool) -> list[Piece[S]]:
    """Cover the context from ``begin`` to the last placed token with contiguous pieces.

    Args:
        spans: in ascending order, disjoint.
        begin: index behind the tokens that the radix tree already serves.
        limit: index before which pieces must end: a request computes at least its last token.
        to_the_end: whether to cover the last span even if it has no encoding.  The tokens of a choreography cannot be
            left to ordinary prefill, which would compute them at other positions.

    Returns:
        Pieces in ascending order; tokens between spans are computed, at positions equal to their indices.  Empty if
        nothing is placed and nothing must be covered.
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
    """Return the tokens to compute: pieces without a source, and those of other pieces listed in ``recomputed``.

    Args:
        pieces: ascending and contiguous.
        recomputed: indices, ascending.

    Returns:
        Ascending runs, each as long as indices and positions stay consecutive.
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
    """Append a run, merged into the last one if it continues it."""
    last = runs[-1] if runs else None
    if last is not None and (last.end, last.position + len(last)) == (run.start, run.position):
        runs[-1] = Run(last.start, run.end, last.position)
    else:
        runs.append(run)


def passes(runs: Sequence[Run], most_rows: int, most_tokens: int) -> list[list[Run]]:
    """Split runs into forward passes of at most ``most_rows`` rows and ``most_tokens`` tokens, in order.

    The rows of a pass go through the layers together, so each sees the KV of the rows before it; earlier passes are
    complete by then.  A run that is longer than a pass is cut; tokens behind the cut see those before it.  So the runs
    of one request must be ascending.

    Raises:
        ValueError: if a limit is below 1.
    """
    if most_rows < 1 or most_tokens < 1:
        raise ValueError(
            f"a pass needs at least one row and one token, got {most_rows} rows and {most_tokens} tokens"
        )
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
    """A set of indices, stored as ascending disjoint runs."""

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
        """Remove a run."""
        rest = []
        for first, behind in self._runs:
            rest += [(first, min(behind, start)), (max(first, end), behind)]
        self._runs = [(first, behind) for first, behind in rest if first < behind]


def all_chosen(piece: Piece[Any], chosen: Sequence[int]) -> bool:
    """Whether all tokens of a piece are recomputed, so that none is placed; ``chosen`` ascends."""
    first = bisect_left(chosen, piece.start)
    return bisect_left(chosen, piece.end) - first == len(piece)
