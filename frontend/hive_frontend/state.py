"""A state of a search: a point that one branch of a program has reached, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hive_frontend.compiler.program import Suspended
from hive_frontend.flow_graph import FAIL, RETURN
from hive_frontend.identity import Path, state_id

Kind = Literal["waiting", "final", "dead"]


class State:
    """One state of a running agent: waiting for its model call, final, or dead.

    A waiting state stands right before a call. Firing it makes the call and runs the agent's code up to the
    next call, which gives a new state; firing it again draws another answer and gives another one.
    """

    __slots__ = (
        "failure",
        "fired",
        "id",
        "kind",
        "name",
        "parent",
        "path",
        "score",
        "suspended",
        "value",
        "visits",
    )

    def __init__(
        self,
        path: Path,
        parent: State | None,
        *,
        score: float | None,
        suspended: Suspended | None = None,
        value: Any = None,
        failure: str | None = None,
    ) -> None:
        self.path = path
        """Number of the root, then the number of each firing on the way here. Orders the states of a search
        the same way in every run."""
        self.id = state_id(path)
        """The path in one word, as the server gets it."""
        self.parent = parent
        self.score = score
        """The last score given on the way here; higher is better."""
        self.suspended = suspended
        """Where the branch stopped, and the variables and the call it goes on with. The runtime clears it
        when the state will not be fired any more."""
        self.value = value
        """What the agent returned, if the state is final."""
        self.failure = failure
        """Why the branch is dead, if it is."""
        self.fired = 0
        """How many times the state has been fired."""
        self.kind: Kind = "waiting" if suspended else "final" if failure is None else "dead"
        self.name = suspended.point.name if suspended else RETURN if failure is None else FAIL
        visits: Mapping[str, int] = parent.visits if parent else {}
        self.visits: dict[str, int] = {**visits, self.name: visits.get(self.name, 0) + 1}
        """How many times each named state was reached on the way here, this time included."""

    def __repr__(self) -> str:
        return f"<State {self.id} {self.kind} at {self.name!r}, score {self.score}>"


def by_promise(state: State) -> tuple[float, Path]:
    """Sort key: best score first, states without a score last, ties in the order of their paths.

    Nothing in it depends on when a state was reached, so rankings are the same in every run.
    """
    return (float("inf") if state.score is None else -state.score, state.path)
