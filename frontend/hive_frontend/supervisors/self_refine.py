"""Self-Refine: go on from what is better than before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.supervisors.searcher import Books, Searcher
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Drop, Fire, State, by_promise


@dataclass
class RefineBooks(Books):
    parent: State | None = None
    """What is being refined."""
    children: list[State] = field(default_factory=list)
    """What came of it so far; once the search settles, what it can still settle for, best first."""
    retries: int = 0
    settling: bool = False


class SelfRefine(Searcher[RefineBooks]):
    """Draws `samples` refinements at each state called `at`, and goes on from the best if it is an improvement.

    A refinement is judged by the score that it has at its next visit of `at`, or as a result: it is an
    improvement if that is higher than the score of the state that was refined (or if that had none). The others
    are given up. Where nothing improves, the same state is fired again, up to `patience` times.

    After that, or when a state at `at` scores at least `target`, the search settles for the best that it has
    there and runs it straight on to its result; should it die on the way, for the next best. Every state is then
    fired once. A result that is an improvement ends the search as well.

    Madaan et al.: Self-Refine: Iterative Refinement with Self-Feedback, 2023.
    """

    def __init__(self, *, at: str, samples: int = 1, patience: int = 2, target: float | None = None) -> None:
        check = Check(self)
        self.at = check.name("at", at)
        self.samples = check.count("samples", samples)
        self.patience = check.count("patience", patience, least=0)
        self.target = check.optional(check.number, "target", target)

    def check(self, graph: FlowGraph) -> None:
        Check(self).known(graph, "at", self.at)

    def begin(self) -> RefineBooks:
        return RefineBooks()

    def go_on(self, state: State) -> Fire | None:
        return None if state.name == self.at else Fire(state)

    def decide(self, books: RefineBooks, arrived: list[State]) -> Sequence[Decision]:
        alive = [state for state in arrived if state.kind != "dead"]
        if books.settling:
            return self._settle(books, alive)
        books.children = sorted(books.children + alive, key=by_promise)
        if books.children and _is_better(books.children[0], books.parent):
            return self._refine(books)
        if books.parent is not None and books.retries < self.patience:
            books.retries += 1
            return [self._draw(books, books.parent)]
        return self._settle(books, [])

    def _refine(self, books: RefineBooks) -> list[Decision]:
        best, *others = books.children
        if best.kind == "final" or (
            self.target is not None and best.score is not None and best.score >= self.target
        ):
            return self._settle(books, [])
        given_up = [state for state in others if state.kind == "waiting"]
        if books.parent is not None and books.parent.path in books.open:
            given_up.append(books.parent)
        books.parent, books.children, books.retries = best, [], 0
        return [*(Drop(state) for state in given_up), self._draw(books, best)]

    def _draw(self, books: RefineBooks, state: State) -> Fire:
        return Fire(state, times=self.samples, last=books.retries == self.patience)

    def _settle(self, books: RefineBooks, alive: list[State]) -> list[Decision]:
        books.settling = True
        books.children = alive + books.children
        if not books.children or books.children[0].kind == "final":
            return []
        return [Fire(books.children.pop(0))]


def _is_better(child: State, parent: State | None) -> bool:
    if parent is None:
        return True
    return child.score is not None and (parent.score is None or child.score > parent.score)
