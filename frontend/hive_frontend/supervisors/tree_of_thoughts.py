"""Tree of Thoughts: breadth-first or depth-first search over named states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.supervisors.searcher import Books, Searcher
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Drop, Fire, State, by_promise
from hive_frontend.supervisors.vote import Vote


@dataclass
class ThoughtBooks(Books):
    waiting: list[State] = field(default_factory=list)
    """States at which to branch later; depth first, a stack."""
    candidates: list[State] = field(default_factory=list)
    """States that a vote is being held on."""
    ballots: int = 0
    results: int = 0
    firings: int = 0


class TreeOfThoughts(Searcher[ThoughtBooks]):
    """Branches at the states called `branch_at`, and keeps the best of each generation.

    States with other names are fired once as soon as they are there. States to branch at wait until no
    branch is on its way any more. What then happens depends on `order`:

    - `"bfs"`: states with the same name, reached the same number of times on their way, form a generation:
      the `breadth` best are fired `branching` times each, the rest is given up. Several generations can only
      wait at once when there are several names; the one with the fewest branchings behind it goes first, so
      that stragglers catch up with the others.
    - `"dfs"`: of the states that the last branching led to, the `breadth` best are kept, and the best of them
      is fired `branching` times. Where that leads nowhere, the search comes back to the next best.

    `select` says which are best: `"value"` ranks by score, a `Vote` by the votes of another agent, which is
    asked only where there is something to choose. States that score below `threshold` are given up at once;
    those without a score are not.

    The search ends when `limit` results are there, when the next branching would exceed the `budget` of firings
    of states to branch at (None: no limit), or when no state is left. All of this is looked at between rounds,
    hence never depends on which of two answers was faster.

    Yao et al.: Tree of Thoughts: Deliberate Problem Solving with Large Language Models, 2023.
    """

    def __init__(
        self,
        *,
        branch_at: str | Sequence[str],
        branching: int = 5,
        breadth: int = 5,
        limit: int | None = 1,
        order: Literal["bfs", "dfs"] = "bfs",
        select: Literal["value"] | Vote = "value",
        threshold: float | None = None,
        budget: int | None = None,
    ) -> None:
        check = Check(self)
        self.branch_at = check.names("branch_at", branch_at)
        self.branching = check.count("branching", branching)
        self.breadth = check.count("breadth", breadth)
        self.limit = check.optional(check.count, "limit", limit)
        self.order = check.choice("order", order, ("bfs", "dfs"))
        if not isinstance(select, Vote) and select != "value":
            raise check.error(f"select must be 'value' or a Vote, not {select!r}")
        self.select = select
        self.threshold = check.optional(check.number, "threshold", threshold)
        self.budget = check.optional(check.count, "budget", budget)

    def check(self, graph: FlowGraph) -> None:
        Check(self).known(graph, "branch_at", *self.branch_at)

    def begin(self) -> ThoughtBooks:
        return ThoughtBooks()

    def go_on(self, state: State) -> Fire | None:
        return None if state.name in self.branch_at else Fire(state)

    def decide(self, books: ThoughtBooks, arrived: list[State]) -> Sequence[Decision]:
        if books.candidates and isinstance(self.select, Vote):
            group, books.candidates = books.candidates, []
            return self._expand(books, self.select.ranking(group, arrived))
        books.results += sum(state.kind == "final" for state in arrived)
        if self.limit is not None and books.results >= self.limit:
            return []
        stopped = [state for state in arrived if state.kind == "waiting"]
        decisions = [Drop(state) for state in stopped if self._is_poor(state)]
        group = [state for state in stopped if not self._is_poor(state)]
        if self.order == "bfs" and (waiting := books.waiting + group):
            group, books.waiting = next_generation(waiting, self.branch_at)
        if isinstance(self.select, Vote) and len(group) > (self.breadth if self.order == "bfs" else 1):
            books.candidates = group
            books.ballots += 1
            return [*decisions, *self.select.asks(group, books.ballots)]
        return [*decisions, *self._expand(books, sorted(group, key=by_promise))]

    def _expand(self, books: ThoughtBooks, ranked: list[State]) -> Sequence[Decision]:
        keep, rest = ranked[: self.breadth], ranked[self.breadth :]
        if self.order == "dfs":
            books.waiting += reversed(keep)
            keep = books.waiting[-1:]
            del books.waiting[-1:]
        if self.budget is not None:
            keep = keep[: (self.budget - books.firings) // self.branching]
        books.firings += len(keep) * self.branching
        return [Drop(state) for state in rest] + [Fire(state, times=self.branching) for state in keep]

    def _is_poor(self, state: State) -> bool:
        return self.threshold is not None and state.score is not None and state.score < self.threshold


def next_generation(waiting: Sequence[State], names: Sequence[str]) -> tuple[list[State], list[State]]:
    """Split waiting states into the generation to expand next and the others."""

    def order(state: State) -> tuple[int, int, int]:
        branchings = sum(state.visits.get(name, 0) for name in names)
        return branchings, names.index(state.name), state.visits[state.name]

    def generation(state: State) -> tuple[str, int]:
        return state.name, state.visits[state.name]

    chosen = generation(min(waiting, key=order))
    group = [state for state in waiting if generation(state) == chosen]
    return group, [state for state in waiting if generation(state) != chosen]
