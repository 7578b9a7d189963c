"""The states of a search, each a point that one branch of a program has reached, and what is decided about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hive_frontend.client.reply import Reply
from hive_frontend.compiler.flow_graph import FAIL, RETURN, YIELD
from hive_frontend.compiler.process import Waiting
from hive_frontend.operations.child import AgentContract
from hive_frontend.operations.identity import Path, next_id, state_id

Kind = Literal["waiting", "final", "dead"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Run another agent, to learn something about the search: let one vote, say, or judge.

    It runs under its own supervisor, and its states are no concern of this one. The best that it ends in, final
    or dead, is handed to `commit` like any other state, with this object as `state.asked` (None for all states of
    the search) and a `path` that no other state has.
    """

    agent: AgentContract
    args: tuple[Any, ...]
    key: tuple[int, ...]
    """Tells this from everything else that the supervisor asks, in every run the same: what is random about
    the answer derives from the run's seed and from this."""


class State:
    """One state of a running agent: waiting for what it awaits, final, or dead.

    A waiting state stands right before an operation, such as a model call. Firing it performs the operation
    and runs the agent's code up to the next one, which gives a new state; firing it again draws another
    answer and gives another one. A spawned agent's state at a `yield` is final, too: final for the search
    that its parent waits for.
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
        "parent",
        "path",
        "replies",
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
        """Number of the root, then the number of each firing on the way here. Orders the states of a search
        the same way in every run."""
        self._id: str | None = None
        self.parent = parent
        self.score = score
        """The last score given on the way here; higher is better."""
        self.kind: Kind = kind
        self.waiting = waiting
        """The suspended program. The runtime clears it when the state will not be fired any more."""
        self.value = value
        """What the agent returned (or yielded), if the state is final."""
        self.sleeping = sleeping
        """Whether it waits for another agent rather than for a model or a tool."""
        self.failure = failure
        """Why the branch is dead, if it is."""
        self.spent = spent
        """Whether it is dead because a budget was spent."""
        self.replies = replies
        """What the model answered on the way from the parent to here."""
        self.asked: Ask | None = None
        """The question of the supervisor that this state is the answer to; None for states of the search."""
        if kind == "dead":
            self.name = FAIL
        elif waiting is None:
            self.name = RETURN
        else:
            self.name = YIELD if kind == "final" else waiting.point.name
        visits: Mapping[str, int] = parent.visits if parent else {}
        self.visits: dict[str, int] = {**visits, self.name: visits.get(self.name, 0) + 1}
        """How many times each named state was reached on the way here, this time included."""
        self.fired = 0
        """How many times the state has been fired."""
        self.unstarted = 0
        """Firings that wait for their turn."""
        self.unfinished = 0
        """Firings that have not led to a new state yet, those that wait included."""
        self.borrowed = parent is None
        """Whether its variables may be objects of the caller: arguments that no fork has copied yet."""
        self.closed = False
        """Whether the supervisor has fired it for the last time, or given it up."""

    @property
    def order(self) -> tuple[Path, ...]:
        """The path in pieces, which orders states as their paths do."""
        return (self.path,)

    @property
    def id(self) -> str:
        """The path in one word, as the server gets it."""
        if self._id is None:
            self._id = next_id(self.parent.id, self.path) if self.parent else state_id(self.path)
        return self._id

    def __repr__(self) -> str:
        return f"<State {self.id} {self.kind} at {self.name!r}, score {self.score}>"


def by_promise(state: State) -> tuple[float, Path]:
    """Sort key: best score first, states without a score last, ties in the order of their paths.

    Nothing in it depends on when a state was reached, so rankings are the same in every run.
    """
    return (float("inf") if state.score is None else -state.score, state.path)


@dataclass(frozen=True, slots=True)
class Fire:
    """Fire a state: draw `times` answers to its call, which leads to that many new states.

    `last` promises that the state is not fired again, so that its variables can be let go. A state that is
    fired once in all hands its variables on uncopied.
    """

    state: State
    times: int = 1
    last: bool = True


@dataclass(frozen=True, slots=True)
class Drop:
    """Give a state up: it is not fired (again). Firings of it that are under way are cancelled, and lead to
    nothing that is committed."""

    state: State


Decision = Fire | Drop | Ask
