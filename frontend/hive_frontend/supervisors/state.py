"""The states of a search, each a point on one branch of an agent, and the decisions of a supervisor about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hive_frontend.client.reply import Reply
from hive_frontend.compiler.flow_graph import FAIL, RETURN, YIELD
from hive_frontend.compiler.process import Waiting
from hive_frontend.operation import Operation
from hive_frontend.operations.child import AgentContract
from hive_frontend.operations.identity import Path, next_id, state_id

Kind = Literal["waiting", "final", "dead"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Run another agent to get information for the search, such as a vote or a judgement.

    The other agent runs under its own supervisor. Its best final state, or its best dead one if none is final, is
    passed to `commit` like a state of the search, with this object as `state.asked` and a `path` of its own.
    `state.asked` is None for all states of the search itself.
    """

    agent: AgentContract
    args: tuple[Any, ...]
    key: tuple[int, ...]
    """Identifies this question among all of the supervisor's, the same in every run. The random seeds of the
    answer derive from the run's seed and this key."""


class State:
    """One state of a running agent: waiting at an operation, final, or dead.

    A waiting state is right before an operation, such as a model call. Firing it performs the operation and runs
    the agent's code up to the next operation, which makes a new state. Firing it again draws another answer and
    makes another state. The state of a spawned agent at a `yield` is final, too: it ends the search that the
    spawning agent waits for.
    """

    __slots__ = (
        "_id",
        "asked",
        "borrowed",
        "closed",
        "failure",
        "fired",
        "kind",
        "name",
        "offered",
        "parent",
        "path",
        "replies",
        "results",
        "score",
        "sleeping",
        "spent",
        "unfinished",
        "unstarted",
        "value",
        "visits",
        "waiting",
    )

    def __init__(
        self,
        path: Path,
        parent: State | None,
        *,
        score: float | None,
        kind: Kind,
        waiting: Waiting | None = None,
        sleeping: bool = False,
        value: Any = None,
        failure: str | None = None,
        spent: bool = False,
        replies: tuple[Reply, ...] = (),
    ) -> None:
        self.path = path
        """The number of the root, then the number of each firing on the branch. Sorting by it gives the same order
        in every run."""
        self._id: str | None = None
        self.parent = parent
        self.score = score
        """The last score given on the branch; higher is better. None if there was none."""
        self.kind: Kind = kind
        self.waiting = waiting
        """The suspended program. The runtime sets it to None once the state cannot be fired any more."""
        self.value = value
        """What the agent returned (or yielded), if the state is final."""
        self.sleeping = sleeping
        """Whether it waits for another agent instead of a model or a tool."""
        self.failure = failure
        """Why the branch is dead, if it is."""
        self.spent = spent
        """Whether it is dead because a budget is spent."""
        self.replies = replies
        """The model's answers between the parent and this state."""
        self.results: Sequence[str] = ()
        """The results of tools that the model called between the parent and this state."""
        self.offered = False
        """Whether it is the result that its parent offered (see `score`), not one that the agent returned."""
        self.asked: Ask | None = None
        """The question of the supervisor that this state answers; None for states of the search."""
        if kind == "dead":
            self.name = FAIL
        elif waiting is None:
            self.name = RETURN
        else:
            self.name = YIELD if kind == "final" else waiting.point.name
        visits: Mapping[str, int] = parent.visits if parent else {}
        self.visits: dict[str, int] = {**visits, self.name: visits.get(self.name, 0) + 1}
        """How many states of each name are on the branch, this one included."""
        self.fired = 0
        """How many times the state has been fired."""
        self.unstarted = 0
        """Firings in the queue, not started yet."""
        self.unfinished = 0
        """Firings that have not led to a new state yet, including those in the queue."""
        self.borrowed = parent is None
        """Whether its variables may be objects of the caller: arguments that no fork has copied yet."""
        self.closed = False
        """Whether the supervisor has fired it for the last time, or has dropped it."""

    @property
    def options(self) -> int:
        """How many options the state has, if it waits at a `choose`; otherwise 0."""
        operation = None if self.waiting is None else self.waiting.operation
        return operation.options if isinstance(operation, Operation) else 0

    @property
    def order(self) -> tuple[Path, ...]:
        """The path, split into pieces; sorts states like the path itself."""
        return (self.path,)

    @property
    def id(self) -> str:
        """The path as a string, as the server receives it."""
        if self._id is None:
            self._id = next_id(self.parent.id, self.path) if self.parent else state_id(self.path)
        return self._id

    def __repr__(self) -> str:
        return f"<State {self.id} {self.kind} at {self.name!r}, score {self.score}>"


def best_first(state: State) -> tuple[float, Path]:
    """Return the sort key that puts the best score first and states without a score last; ties go by path.

    It does not depend on when a state was reached, so rankings are the same in every run.
    """
    return (float("inf") if state.score is None else -state.score, state.path)


@dataclass(frozen=True, slots=True)
class Fire:
    """Fire a state: draw `times` samples of its operation, each of which leads to a new state.

    `last` promises that the state is not fired again, so its variables can be released. A state that is fired
    only once passes its variables on without a copy. At a `choose`, `option` is the index of the option to take, below
    `state.options`; without it the firings take the options in turn.
    """

    state: State
    times: int = 1
    last: bool = True
    option: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Prune a state: it is not fired again. Its firings in flight are cancelled; their states are not committed."""

    state: State


Decision = Fire | Drop | Ask
