"""What a supervisor is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hive_frontend.flow_graph import FlowGraph
from hive_frontend.state import State


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
    """Give a state up: it is not fired (again)."""

    state: State


Decision = Fire | Drop


class Supervisor(ABC):
    """A test-time scaling algorithm, as four callbacks of the runtime.

    The runtime calls `init` with the initial states when the agent is spawned. Then, and after every
    `commit`, it asks `fire` what to do. It fires the states that it is told to, all concurrently, and hands
    every state that results to `commit`. The run ends when nothing is in flight and `fire` wants nothing.
    Agent code does not know that any of this happens.

    Two rules for authors. The runtime works on a deep copy of the instance that it is given, so an instance
    holds the settings of all runs and the books of none until `init`. And states are committed in the order
    in which the model happens to answer: for runs that can be repeated, let decisions depend on the set of
    states committed (sorted by `path`, say), never on the order in which they came.
    """

    def check(self, graph: FlowGraph) -> None:  # noqa: B027
        """Raise `SupervisorError` if this supervisor does not suit an agent with this flow graph.

        Called when an agent is defined with the supervisor, and before a run.
        """

    @abstractmethod
    def init(self, states: Sequence[State]) -> None:
        """The agent was spawned; these are its initial states, already at their first call or at the end."""

    @abstractmethod
    def fire(self) -> Iterable[Decision]:
        """Which states to fire now, and which to give up."""

    @abstractmethod
    def commit(self, state: State) -> None:
        """A transition finished and led to `state`, which may be waiting, final or dead."""

    def wake(self, state: State) -> None:  # noqa: B027
        """What `state` slept on has happened: another agent yielded or ended, so it can be fired.

        Only states that wait for other agents sleep. An agent on its own has none.
        """
