"""The result of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any, Generic, TypeVar

from hive_frontend.runs.questions import Question
from hive_frontend.search.totals import Totals
from hive_frontend.tree import SearchTree

R = TypeVar("R")


@dataclass(frozen=True)
class Result(Generic[R]):
    """One value that the agent returned, in one branch of the search."""

    value: R
    score: float | None
    state: str
    finished: bool = field(default=True, repr=False)
    """Whether the agent returned it. False for a result that a branch only offered (see `score`), and for the best
    state of a run that ended before any result: its `value` is None, and `tree.path_to(state)` shows its branch."""


@dataclass(frozen=True)
class RunResult(Generic[R]):
    """The outcome of a run."""

    results: tuple[Result[R], ...]
    """All results: best score first, those without a score last, ties in the order of their states. The best offered
    one is among them if it is better than all that were returned."""
    totals: Totals
    """Requests and tokens, in total and per agent, and the wall time."""
    states_fired: int
    seed: int
    session: str
    stopped: bool
    """Whether the run was ended early: by `stop_at`, `Stream.stop` or Ctrl-C."""
    questions: tuple[Question, ...] = ()
    """The questions that branches wait for; empty if the run has finished. Once they are answered, run it again."""
    run_id: str | None = None
    """The id of the run in its store; None without a store."""
    _draw: Callable[[], SearchTree] = field(repr=False, compare=False, kw_only=True)
    _unfinished: Result[R] | None = field(default=None, repr=False)

    @cached_property
    def tree(self) -> SearchTree:
        """All states of the search. Built on first access."""
        return self._draw()

    @property
    def best(self) -> Result[R] | None:
        """The best result. If the run was stopped or its budget spent before any result, the state with the best score,
        which is not `finished`. None if every branch failed or waits for people."""
        return self.results[0] if self.results else self._unfinished

    @property
    def value(self) -> R | None:
        """The value of the best result; None if every branch failed. (A result may be None, too: see `best`.)"""
        return self.results[0].value if self.results else None

    def __deepcopy__(self, memo: dict[int, Any]) -> RunResult[R]:
        """Return `self`: an agent that judges a result may branch, and its branches share the result."""
        return self

    def _repr_html_(self) -> str:
        """Show the best result, the totals and the search tree in a notebook."""
        totals = self.totals
        facts = [
            f"{len(self.results)} result{'' if len(self.results) == 1 else 's'}",
            f"{self.states_fired:,} states fired",
            f"{totals.requests:,} requests",
            f"{totals.tokens_generated:,} tokens generated",
            f"{totals.tokens_replayed:,} replayed",
            *([] if totals.cost is None else [f"cost {totals.cost:.4g}"]),
            f"{totals.wall_s:.1f} s",
            f"seed {self.seed}",
        ]
        best = repr(self.best)
        if self.best is None:
            waits, stopped = "it waits for people", "the run was stopped"
            why = waits if self.questions else stopped if self.stopped else "every branch failed"
            best = f"no result: {why}"
        return f"<pre>{escape(best)}</pre><p>{', '.join(facts)}</p>{self.tree._repr_html_()}"
