"""Tree of Thoughts as breadth-first search over named states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hive_frontend.errors import SupervisorError
from hive_frontend.flow_graph import FlowGraph
from hive_frontend.state import State, by_promise
from hive_frontend.supervisors.base import Decision, Drop, Fire, Supervisor


class TreeOfThoughts(Supervisor):
    """Branches at the states called `branch_at`, and keeps the best of each generation.

    States with other names are fired once as soon as they are there. States to branch at wait until no
    branch is on its way any more. Then those with the same name, reached the same number of times on their
    way, form a generation: the `breadth` best by score are fired `branching` times each, the rest is given
    up. Several generations can only wait at once when there are several names; the youngest-founded one, with
    the fewest branchings behind it, goes first, so that stragglers catch up with the others.

    The search ends when `limit` results are there (None: no limit) or no state is left. The limit is looked
    at between generations, hence never depends on which of two answers was faster.
    """

    def __init__(
        self,
        *,
        branch_at: str | Sequence[str],
        branching: int = 5,
        breadth: int = 5,
        limit: int | None = 1,
    ) -> None:
        self.branch_at = (branch_at,) if isinstance(branch_at, str) else tuple(branch_at)
        if not self.branch_at:
            raise SupervisorError("TreeOfThoughts: branch_at names no state to branch at")
        for setting, value in (("branching", branching), ("breadth", breadth), ("limit", limit)):
            optional = setting == "limit" and value is None
            if not optional and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SupervisorError(
                    f"TreeOfThoughts: {setting} must be an integer of at least 1, not {value!r}"
                )
        self.branching = branching
        self.breadth = breadth
        self.limit = limit
        self._ready: list[State] = []
        self._parked: list[State] = []
        self._in_flight = 0
        self._results = 0

    def check(self, graph: FlowGraph) -> None:
        names = graph.state_names
        for name in self.branch_at:
            if name not in names:
                known = f"its states are {', '.join(names)}" if names else "it has no states"
                raise SupervisorError(
                    f"TreeOfThoughts: branch_at={name!r} names no state of agent {graph.agent!r}; {known} "
                    '(name a state with gen(..., name="..."))'
                )

    def init(self, states: Sequence[State]) -> None:
        for state in states:
            self._sort_in(state)

    def commit(self, state: State) -> None:
        self._in_flight -= 1
        self._sort_in(state)

    def _sort_in(self, state: State) -> None:
        if state.kind == "final":
            self._results += 1
        elif state.kind == "waiting":
            (self._parked if state.name in self.branch_at else self._ready).append(state)

    def fire(self) -> Iterable[Decision]:
        if self._ready:
            decisions: list[Decision] = [Fire(state) for state in self._ready]
            self._ready = []
        elif self._in_flight == 0 and self._parked:
            decisions = self._next_generation()
        else:
            return []
        self._in_flight += sum(decision.times for decision in decisions if isinstance(decision, Fire))
        return decisions

    def _next_generation(self) -> list[Decision]:
        if self.limit is not None and self._results >= self.limit:
            dropped, self._parked = self._parked, []
            return [Drop(state) for state in sorted(dropped, key=by_promise)]
        group, self._parked = next_generation(self._parked, self.branch_at)
        return [
            Fire(state, times=self.branching) if rank < self.breadth else Drop(state)
            for rank, state in enumerate(sorted(group, key=by_promise))
        ]

    def __repr__(self) -> str:
        return (
            f"TreeOfThoughts(branch_at={self.branch_at!r}, branching={self.branching}, "
            f"breadth={self.breadth}, limit={self.limit})"
        )


def next_generation(waiting: Sequence[State], names: Sequence[str]) -> tuple[list[State], list[State]]:
    """Split waiting states into the generation to expand next and the others."""

    def generation(state: State) -> tuple[int, int, int]:
        branchings = sum(state.visits.get(name, 0) for name in names)
        return branchings, names.index(state.name), state.visits[state.name]

    def key(state: State) -> tuple[str, int]:
        return state.name, state.visits[state.name]

    chosen = key(min(waiting, key=generation))
    return [s for s in waiting if key(s) == chosen], [s for s in waiting if key(s) != chosen]
