"""States at the end of long paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from hive_frontend.operations.identity import PIECE, LongPath, Path, state_id
from hive_frontend.supervisors.state import State


class LongState(State):
    """A state whose path is longer than `PIECE`.

    It shares the pieces of its path with its ancestors, and derives ids and seeds incrementally from theirs. Most
    paths are shorter, and a plain `State` is faster.
    """

    __slots__ = ("_before", "_long", "_origin", "_tail")

    def __init__(self, path: Path, parent: State | None, awaiting: State | None, **rest: Any) -> None:
        """`awaiting` is the state of another agent that waits for this one; its path is a prefix of this path."""
        self._origin = parent or awaiting
        shared = tuple(each for each in self._origin.order if len(each) == PIECE) if self._origin else ()
        starts = range(PIECE * len(shared), len(path), PIECE)
        *pieces, self._tail = (path[start : start + PIECE] for start in starts)
        self._before = (*shared, *pieces) if pieces or parent is None else self._shared_by(parent, shared)
        self._long: LongPath | None = None
        super().__init__(path, parent, **rest)

    @staticmethod
    def _shared_by(parent: State, pieces: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return the parent's own tuple of these pieces if it has one, to save memory."""
        known = getattr(parent, "_before", ())
        return known if len(known) == len(pieces) else pieces

    @property
    def path(self) -> Path:
        return (*chain.from_iterable(self._before), *self._tail)

    @path.setter
    def path(self, path: Path) -> None:
        """Do nothing: the path is stored in pieces."""

    @property
    def order(self) -> tuple[Path, ...]:
        return (*self._before, self._tail)

    @property
    def id(self) -> str:
        if self._id is None:
            origin = self._origin
            known = isinstance(origin, LongState) and origin._long is not None
            self._id = self._extended().id if known else state_id(self.path)
        return self._id

    def long_path(self, run_seed: int) -> LongPath:
        """Return the path object from which the seeds of its calls derive."""
        if self._long is None:
            known = isinstance(self._origin, LongState) and self._origin._long is not None
            self._long = self._extended() if known else LongPath(run_seed, self.path)
        return self._long

    def _extended(self) -> LongPath:
        """Return the long path of the origin, extended to this state."""
        origin = self._origin
        assert isinstance(origin, LongState)
        assert origin._long is not None
        path = origin._long
        steps = self._tail[-1:] if self.parent else self.path[sum(map(len, origin.order)) :]
        for step in steps:
            path = path.then(step)
        return path


def state_factory(path: Path, awaiting: State | None) -> Callable[..., State]:
    """Return the constructor for a state at the end of `path`, with the arguments of `State`.

    `awaiting` is the state of another agent that waits for this one, if any.
    """
    return State if len(path) <= PIECE else partial(LongState, awaiting=awaiting)
