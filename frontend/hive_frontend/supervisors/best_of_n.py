"""Best-of-n: the whole agent several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.supervisors.searcher import Books, Searcher
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Fire, State


@dataclass
class SampleBooks(Books):
    sources: list[State] = field(default_factory=list)
    """The states that samples are drawn from."""
    drawn: int = 0
    best: float = float("-inf")


class BestOfN(Searcher[SampleBooks]):
    """Runs the agent `n` times; the result with the best score wins.

    The first state, or the first one called `at`, is fired `n` times, every other state once. All samples run
    at once, unless `enough` is given: then they come in batches of `batch`, and the last batch is the one in
    which a result scored at least `enough`. (Between batches, because which sample of a batch is there first is
    a matter of luck.)

    Stiennon et al.: Learning to Summarize from Human Feedback, 2020; Cobbe et al.: Training Verifiers to Solve
    Math Word Problems, 2021.
    """

    def __init__(
        self, n: int, *, at: str | None = None, enough: float | None = None, batch: int | None = None
    ) -> None:
        check = Check(self)
        self.n = check.count("n", n)
        self.at = check.optional(check.name, "at", at)
        self.enough = check.optional(check.number, "enough", enough)
        self.batch = check.optional(check.count, "batch", batch)
        if (enough is None) != (batch is None):
            raise check.error("enough and batch go together: enough is looked at after each batch of samples")

    def check(self, graph: FlowGraph) -> None:
        if self.at is not None:
            Check(self).known(graph, "at", self.at)

    def begin(self) -> SampleBooks:
        return SampleBooks()

    def go_on(self, state: State) -> Fire | None:
        first = (
            state.parent is None if self.at is None else state.name == self.at and state.visits[self.at] == 1
        )
        return None if first else Fire(state)

    def decide(self, books: SampleBooks, arrived: list[State]) -> Sequence[Decision]:
        books.sources += [state for state in arrived if state.kind == "waiting"]
        for state in arrived:
            if state.kind == "final" and state.score is not None:
                books.best = max(books.best, state.score)
        if self.enough is not None and books.best >= self.enough:
            return []
        times = min(self.batch or self.n, self.n - books.drawn)
        if not times:
            return []
        books.drawn += times
        return [Fire(state, times=times, last=books.drawn == self.n) for state in books.sources]
