"""States at the end of long paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from hive_frontend.operations.identity import PIECE, LongPath, Path, state_id
from hive_frontend.supervisors.state import State


class LongState(State):
    """A state with a path of more than a `PIECE`.

    It shares the pieces of the path with the states before it, and what ids and seeds derive from goes on from
    theirs. Most states are none, and are made and asked faster without.
    """

    __slots__ = ("_before", "_long", "_origin", "_tail")

    def __init__(self, path: Path, parent: State | None, above: State | None, **rest: Any) -> None:
        """`above` is the state of another agent that waits for this one's: their paths begin with that state's."""
        self._origin = parent or above
        shared = tuple(each for each in self._origin.order if len(each) == PIECE) if self._origin else ()
        starts = range(PIECE * len(shared), len(path), PIECE)
        *pieces, self._tail = (path[start : start + PIECE] for start in starts)
        self._before = (*shared, *pieces) if pieces or parent is None else self._shared_by(parent, shared)
        self._long: LongPath | None = None
        super().__init__(path, parent, **rest)

    @staticmethod
    def _shared_by(parent: State, pieces: tuple[Path, ...]) -> tuple[Path, ...]:
        """These pieces as the same object that the parent has, where it has them."""
        known = getattr(parent, "_before", ())
        return known if len(known) == len(pieces) else pieces

    @property
    def path(self) -> Path:
        return (*chain.from_iterable(self._before), *self._tail)

    @path.setter
    def path(self, path: Path) -> None:
        """It is in pieces already."""

    @property
    def order(self) -> tuple[Path, ...]:
        return (*self._before, self._tail)

    @property
    def id(self) -> str:
        if self._id is None:
            origin = self._origin
            known = isinstance(origin, LongState) and origin._long is not None
            self._id = self._followed().id if known else state_id(self.path)
        return self._id

    def long_path(self, run_seed: int) -> LongPath:
        """What the seeds of its calls derive from."""
        if self._long is None:
            known = isinstance(self._origin, LongState) and self._origin._long is not None
            self._long = self._followed() if known else LongPath(run_seed, self.path)
        return self._long

    def _followed(self) -> LongPath:
        """The long path of the origin, followed to here."""
        origin = self._origin
        assert isinstance(origin, LongState)
        assert origin._long is not None
        path = origin._long
        steps = self._tail[-1:] if self.parent else self.path[sum(map(len, origin.order)) :]
        for step in steps:
            path = path.then(step)
        return path


def maker(path: Path, above: State | None) -> Callable[..., State]:
    """What makes the state at the end of a path, given what a `State` is; `above` is that of `LongState`."""
    return State if len(path) <= PIECE else partial(LongState, above=above)
