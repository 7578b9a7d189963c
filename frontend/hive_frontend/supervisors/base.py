"""The contract between the runtime and a supervisor.

Most algorithms are written more easily as a `Searcher` (`hive_frontend.supervisors.searcher`), which needs two
methods and cannot depend on who answers first; its module shows a whole one.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.compiler.program import Program
from hive_frontend.operations.child import AgentContract
from hive_frontend.supervisors.state import Decision, State


class Supervisor(ABC):
    """A test-time scaling algorithm, as four callbacks of the runtime.

    The runtime calls `init` with the initial states when the agent is spawned. Then, and after every
    `commit`, it asks `fire` what to do. It fires the states that it is told to, all concurrently, and hands
    every state that results to `commit`. The run ends when nothing is in flight and `fire` wants nothing.
    Agent code does not know that any of this happens.

    A state whose operation waits for another agent sleeps. It is fired like any other: the runtime keeps the
    firing back until the other agent yields or ends, tells `wake`, and goes on. To a supervisor, sleep is a
    call that takes long.

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
        """The agent was spawned; these are its initial states, already at their first call or at the end. They
        have no parent."""

    @abstractmethod
    def fire(self) -> Iterable[Decision]:
        """Which states to fire now, which to give up, and which agents to ask."""

    @abstractmethod
    def commit(self, state: State) -> None:
        """A transition finished and led to `state`, which may be waiting, final or dead; or an agent that was
        asked ended in it."""

    def wake(self, state: State) -> None:  # noqa: B027
        """What `state` slept on has happened: another agent yielded or ended.

        Information only: a firing that was kept back goes on by itself.
        """

    def __repr__(self) -> str:
        """The settings: what `__init__` takes and the instance keeps by the same name. Numbers always show,
        since they say how large a search is, other settings only where they differ from the default."""
        shown = [
            f"{name}={show_setting(value)}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if (value := getattr(self, name, parameter.default)) != parameter.default
            or isinstance(value, (int, float))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def show_setting(value: object) -> str:
    """A setting, the same in every process: without the address of a function."""
    if inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)


@runtime_checkable
class SearchedAgent(AgentContract, Protocol):
    """An agent, as those see it who search it."""

    @property
    def program(self) -> Program: ...
    @property
    def supervisor(self) -> Supervisor: ...
