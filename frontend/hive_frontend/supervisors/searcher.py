'''Supervisors as plain functions: what is known goes in, decisions come out.

    class Halving(Searcher[Books]):
        """Successive halving: many starts, of which the better half is looked at again and again.

        Karnin, Koren, Somekh: Almost Optimal Exploration in Multi-Armed Bandits, 2013.
        """

        def __init__(self, *, at: str, starts: int) -> None:
            self.at = at
            self.starts = starts

        def begin(self) -> Books:
            return Books()

        def go_on(self, state: State) -> Fire | None:
            return None if state.name == self.at else Fire(state)

        def decide(self, books: Books, arrived: list[State]) -> Sequence[Decision]:
            ranked = sorted((state for state in arrived if state.kind == "waiting"), key=by_promise)
            if ranked and ranked[0].visits[self.at] == 1:
                return [Fire(state, times=self.starts) for state in ranked]
            half = (len(ranked) + 1) // 2
            return [Fire(state) if rank < half else Drop(state) for rank, state in enumerate(ranked)]

The search goes in rounds. Within one, `go_on` sends states on that the algorithm does not care about. When all
that was fired has come to a stop, `decide` gets everything that `arrived` since the last round, sorted, and opens
the next round. That is the reason why a search does not depend on who answers first, and needs no care for it.
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
class Books:
    """What one run of a search knows. An algorithm that remembers something adds fields in a subclass."""

    going: list[Fire] = field(default_factory=list)
    """What `go_on` sends on; not handed out yet."""
    arrived: list[State] = field(default_factory=list)
    """What has come to a stop in this round."""
    open: dict[Path, State] = field(default_factory=dict)
    """States that can still be fired."""
    in_flight: int = 0
    """Firings and questions without an answer so far."""
    over: bool = False


B = TypeVar("B", bound=Books)


class Searcher(Supervisor, Generic[B]):
    """A supervisor written as a stateless algorithm.

    The instance holds settings and never changes; what a run learns is in the books that `begin` opens. `ask`
    and `tell` work on books alone, so an algorithm can be tried out without a runtime.
    """

    _books: B

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Runs share the settings, which never change, and have books of their own."""
        return copy.copy(self)

    @abstractmethod
    def begin(self) -> B:
        """The books of a new search."""

    @abstractmethod
    def go_on(self, state: State) -> Fire | None:
        """How to fire a waiting state as soon as it is there; None if it waits for the end of the round.

        It must depend on the state alone.
        """

    @abstractmethod
    def decide(self, books: B, arrived: list[State]) -> Sequence[Decision]:
        """Open the next round. Nothing is in flight.

        `arrived` has every waiting state that `go_on` stopped in the last round, every final and every dead
        one, and every answer that was asked for, in the order of their paths; in the first round, the initial
        states or what they led to. A round that neither fires nor asks is the last one: what can still be fired
        is dropped.
        """

    def ask(self, books: B) -> list[Decision]:
        """What to do now."""
        if not books.going and (books.in_flight or books.over):
            return []
        decisions: list[Decision] = []
        if books.going:
            decisions += books.going
            books.going = []
        else:
            arrived, books.arrived = sorted(books.arrived, key=lambda state: state.path), []
            decisions += self.decide(books, arrived)
            books.over = all(isinstance(decision, Drop) for decision in decisions)
        for decision in decisions:
            if isinstance(decision, Fire):
                books.in_flight += decision.times
            elif isinstance(decision, Ask):
                books.in_flight += 1
            if isinstance(decision, Drop) or (isinstance(decision, Fire) and decision.last):
                books.open.pop(decision.state.path, None)
        if books.over:
            decisions += [Drop(state) for _, state in sorted(books.open.items())]
            books.open.clear()
        return decisions

    def tell(self, books: B, state: State) -> None:
        """Take in a state that was fired for, or an answer that was asked for."""
        books.in_flight -= 1
        going = None
        if state.kind == "waiting":
            books.open[state.path] = state
            going = self.go_on(state)
        if going is None:
            books.arrived.append(state)
        else:
            books.going.append(going)

    def init(self, states: Sequence[State]) -> None:
        self._books = self.begin()
        self._books.in_flight = len(states)
        for state in states:
            self.tell(self._books, state)

    def fire(self) -> Iterable[Decision]:
        return self.ask(self._books)

    def commit(self, state: State) -> None:
        self.tell(self._books, state)


def lineage(state: State) -> list[State]:
    """The states on the way to `state`: from the initial one to itself."""
    way = [state]
    while (parent := way[-1].parent) is not None:
        way.append(parent)
    return way[::-1]
