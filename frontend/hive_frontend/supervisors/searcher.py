'''Supervisors as stateless algorithms: the progress of the search goes in, decisions come out.

    class Halving(Searcher[SearchProgress]):
        """Successive halving: draw many first samples; in each round, continue only the better half.

        Karnin, Koren, Somekh: Almost Optimal Exploration in Multi-Armed Bandits, 2013.
        """

        def __init__(self, *, at: str, starts: int) -> None:
            self.at = at
            self.starts = starts

        def begin(self) -> SearchProgress:
            return SearchProgress()

        def advance(self, state: State) -> Fire | None:
            return None if state.name == self.at else Fire(state)

        def decide(self, progress: SearchProgress, arrived: list[State]) -> Sequence[Decision]:
            ranked = sorted((state for state in arrived if state.kind == "waiting"), key=best_first)
            if ranked and ranked[0].visits[self.at] == 1:
                return [Fire(state, times=self.starts) for state in ranked]
            half = (len(ranked) + 1) // 2
            return [Fire(state) if rank < half else Drop(state) for rank, state in enumerate(ranked)]

A search runs in rounds. Within a round, `advance` fires states on which the algorithm makes no decision. When nothing
is in flight any more, `decide` receives all states that `arrived` in the round, sorted, and starts the next round.
Decisions therefore never depend on which answer arrives first.
'''

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from hive_frontend.operations.identity import Path
from hive_frontend.supervisors.base import Supervisor
from hive_frontend.supervisors.state import Ask, Decision, Drop, Fire, State


@dataclass
class SearchProgress:
    """The progress of one search: its frontier and what is in flight.

    An algorithm that has to remember more adds fields in a subclass.
    """

    ready: list[Fire] = field(default_factory=list)
    """Firings that `advance` chose and that the runtime has not received yet."""
    arrived: list[State] = field(default_factory=list)
    """States that stopped in this round, for the next `decide`."""
    open: dict[Path, State] = field(default_factory=dict)
    """The frontier: states that can still be fired."""
    in_flight: int = 0
    """Firings and questions to other agents that have no answer yet."""
    over: bool = False
    """Whether the last round was decided."""


P = TypeVar("P", bound=SearchProgress)


class Searcher(Supervisor, Generic[P]):
    """A supervisor written as a stateless algorithm with an ask-tell interface.

    The instance holds settings and never changes. Everything that a run learns is in the progress that `begin`
    returns. `ask` and `tell` work on that progress only, so an algorithm can be tested without a runtime.
    """

    _progress: P

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a shallow copy: runs share the settings, which never change; each has its own progress."""
        return copy.copy(self)

    @abstractmethod
    def begin(self) -> P:
        """Return the progress of a new search."""

    @abstractmethod
    def advance(self, state: State) -> Fire | None:
        """Return how to fire a waiting state at once, or None to keep it for `decide`.

        The answer must depend on the state only.
        """

    @abstractmethod
    def decide(self, progress: P, arrived: list[State]) -> Sequence[Decision]:
        """Start the next round: return what to fire, drop and ask. Nothing is in flight at this point.

        `arrived` has the states of the last round, sorted by path: waiting states for which `advance` returned
        None, final and dead states, and answers to `Ask`. In the first round these are the initial states, or
        their successors. A round with neither `Fire` nor `Ask` is the last; the remaining open states are dropped.
        """

    def ask(self, progress: P) -> list[Decision]:
        """Return the decisions that are due now."""
        if not progress.ready and (progress.in_flight or progress.over):
            return []
        decisions: list[Decision] = []
        if progress.ready:
            decisions += progress.ready
            progress.ready = []
        else:
            arrived, progress.arrived = sorted(progress.arrived, key=lambda state: state.path), []
            decisions += self.decide(progress, arrived)
            progress.over = all(isinstance(decision, Drop) for decision in decisions)
        for decision in decisions:
            if isinstance(decision, Fire):
                progress.in_flight += decision.times
            elif isinstance(decision, Ask):
                progress.in_flight += 1
            if isinstance(decision, Drop) or (isinstance(decision, Fire) and decision.last):
                progress.open.pop(decision.state.path, None)
        if progress.over:
            decisions += [Drop(state) for _, state in sorted(progress.open.items())]
            progress.open.clear()
        return decisions

    def tell(self, progress: P, state: State) -> None:
        """Record a new state, or the answer to an `Ask`."""
        progress.in_flight -= 1
        firing = None
        if state.kind == "waiting":
            progress.open[state.path] = state
            firing = self.advance(state)
        if firing is None:
            progress.arrived.append(state)
        else:
            progress.ready.append(firing)

    def init(self, states: Sequence[State]) -> None:
        self._progress = self.begin()
        self._progress.in_flight = len(states)
        for state in states:
            self.tell(self._progress, state)

    def fire(self) -> Iterable[Decision]:
        return self.ask(self._progress)

    def commit(self, state: State) -> None:
        self.tell(self._progress, state)


def lineage(state: State) -> list[State]:
    """Return the branch of `state`: the states from the initial one to `state` itself."""
    branch = [state]
    while (parent := branch[-1].parent) is not None:
        branch.append(parent)
    return branch[::-1]
