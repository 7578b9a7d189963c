"""What a run gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from hive_frontend.search_tree import SearchTree
from hive_frontend.totals import Totals

R = TypeVar("R")


@dataclass(frozen=True)
class Result(Generic[R]):
    """One value that the agent returned, in one branch of the search."""

    value: R
    score: float | None
    state: str


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

    @cached_property
    def tree(self) -> SearchTree:
        """All states of the search. Made when it is first looked at."""
        return self._draw()

    @property
    def best(self) -> Result[R] | None:
        """The best result; None if every branch failed."""
        return self.results[0] if self.results else None

    @property
    def value(self) -> R | None:
        """The value of the best result; None if every branch failed (or if that is the value: see `best`)."""
        return self.results[0].value if self.results else None
