"""What a run gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from hive_frontend.search.search_tree import SearchTree
from hive_frontend.search.totals import Totals

R = TypeVar("R")


@dataclass(frozen=True)
class Result(Generic[R]):
    """One value that the agent returned, in one branch of the search."""

    value: R
    score: float | None
    state: str
    finished: bool = field(default=True, repr=False)
    """False of the best state of a run whose budget was spent before there was any result: the agent had not
    returned there, and `value` is None. `tree.path_to(state)` shows how it came there."""


@dataclass(frozen=True)
class RunResult(Generic[R]):
    """The outcome of a run."""

    results: tuple[Result[R], ...]
    """All results: best score first, those without a score last, ties in the order of their states."""
    totals: Totals
    """Requests and tokens, per agent too, and the wall time."""
    states_fired: int
    seed: int
    session: str
    _draw: Callable[[], SearchTree] = field(repr=False, compare=False)
    _unfinished: Result[R] | None = field(default=None, repr=False)

    @cached_property
    def tree(self) -> SearchTree:
        """All states of the search. Made when it is first looked at."""
        return self._draw()

    @property
    def best(self) -> Result[R] | None:
        """The best result. Where a spent budget left none, the state with the best score, which is not
        `finished`; else None, if every branch failed."""
        return self.results[0] if self.results else self._unfinished

    @property
    def value(self) -> R | None:
        """The value of the best result; None if every branch failed (or if that is the value: see `best`)."""
        return self.results[0].value if self.results else None
