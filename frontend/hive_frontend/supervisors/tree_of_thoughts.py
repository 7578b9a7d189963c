"""Tree of Thoughts: breadth-first or depth-first search over named states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.supervisors.searcher import Searcher, SearchProgress
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Drop, Fire, State, best_first
from hive_frontend.supervisors.vote import Vote


@dataclass
class TreeOfThoughtsProgress(SearchProgress):
    waiting: list[State] = field(default_factory=list)
    """States to expand later. With `order="dfs"`, a stack."""
    candidates: list[State] = field(default_factory=list)
    """Candidates of the vote in flight."""
    ballots: int = 0
    """Votes held so far."""
    results: int = 0
    firings: int = 0
    """Firings of states named `branch_at` so far."""


class TreeOfThoughts(Searcher[TreeOfThoughtsProgress]):
    """Tree of Thoughts: sample several thoughts at the states named `branch_at`, and keep the best states.

    `branching` is the branching factor: the number of thoughts sampled at a state (k in the paper). `breadth` is
    the number of states kept (b in the paper). States with other names are fired once, as soon as they are
    reached. States named `branch_at` wait until nothing else is in flight. `order` is the search algorithm:

    - `"bfs"`: breadth-first search. A generation is the states of one name that are the n-th state of that name on
      their branch. The `breadth` best are fired `branching` times each, the others are dropped. Several
      generations can wait only if `branch_at` has several names; the generation with the fewest branchings on its
      branches is expanded first.
    - `"dfs"`: depth-first search. Of the states that the last expansion led to, the `breadth` best are kept, and
      the best of them is fired `branching` times. Once its subtree is exhausted, the search backtracks to the next
      best.

    `select` is the state evaluator: `"value"` ranks states by score, a `Vote` by the votes of another agent. A
    vote is held only if it can make a difference. States that score below `threshold` are dropped; states without a
    score are not.

    The search ends when there are `limit` results, when the next expansion would exceed `budget` firings of states
    named `branch_at` (None: no limit), or when no state is left. These conditions are checked between rounds, so
    the outcome does not depend on which answer arrives first.

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

    def begin(self) -> TreeOfThoughtsProgress:
        return TreeOfThoughtsProgress()

    def advance(self, state: State) -> Fire | None:
        return None if state.name in self.branch_at else Fire(state)

    def decide(self, progress: TreeOfThoughtsProgress, arrived: list[State]) -> Sequence[Decision]:
        if progress.candidates and isinstance(self.select, Vote):
            group, progress.candidates = progress.candidates, []
            return self._expand(progress, self.select.ranking(group, arrived))
        progress.results += sum(state.kind == "final" for state in arrived)
        if self.limit is not None and progress.results >= self.limit:
            return []
        stopped = [state for state in arrived if state.kind == "waiting"]
        decisions = [Drop(state) for state in stopped if self._is_below_threshold(state)]
        group = [state for state in stopped if not self._is_below_threshold(state)]
        if self.order == "bfs" and (waiting := progress.waiting + group):
            group, progress.waiting = next_generation(waiting, self.branch_at)
        if isinstance(self.select, Vote) and len(group) > (self.breadth if self.order == "bfs" else 1):
            progress.candidates = group
            progress.ballots += 1
            return [*decisions, *self.select.asks(group, progress.ballots)]
        return [*decisions, *self._expand(progress, sorted(group, key=best_first))]

    def _expand(self, progress: TreeOfThoughtsProgress, ranked: list[State]) -> Sequence[Decision]:
        keep, rest = ranked[: self.breadth], ranked[self.breadth :]
        if self.order == "dfs":
            progress.waiting += reversed(keep)
            keep = progress.waiting[-1:]
            del progress.waiting[-1:]
        if self.budget is not None:
            keep = keep[: (self.budget - progress.firings) // self.branching]
        progress.firings += len(keep) * self.branching
        return [Drop(state) for state in rest] + [Fire(state, times=self.branching) for state in keep]

    def _is_below_threshold(self, state: State) -> bool:
        return self.threshold is not None and state.score is not None and state.score < self.threshold


def next_generation(waiting: Sequence[State], names: Sequence[str]) -> tuple[list[State], list[State]]:
    """Split the waiting states into the generation to expand next, and the others."""

    def order(state: State) -> tuple[int, int, int]:
        branchings = sum(state.visits.get(name, 0) for name in names)
        return branchings, names.index(state.name), state.visits[state.name]

    def generation(state: State) -> tuple[str, int]:
        return state.name, state.visits[state.name]

    chosen = generation(min(waiting, key=order))
    group = [state for state in waiting if generation(state) == chosen]
    return group, [state for state in waiting if generation(state) != chosen]
