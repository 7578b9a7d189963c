"""The contract between the runtime and a supervisor.

Most algorithms are easier to write as a `Searcher` (`hive_frontend.supervisors.searcher`): it needs only a few
methods, and its decisions cannot depend on which answer arrives first. That module shows a complete example.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.compiler.program import Program
from hive_frontend.errors import SupervisorError
from hive_frontend.operations.child import AgentContract
from hive_frontend.supervisors.state import Decision, Fire, State


class Supervisor(ABC):
    """A test-time scaling algorithm, written as four callbacks of the runtime.

    The runtime calls `init` with the initial states when the agent starts. Then, and after every `commit`, it
    calls `fire` for decisions. It fires the chosen states concurrently and passes every resulting state to
    `commit`. The run ends when nothing is in flight and `fire` returns no decisions. Agent code does not notice
    any of this.

    A state whose operation waits for another agent is sleeping. A supervisor fires it like any other state: the
    runtime holds the firing until the other agent yields or ends, calls `wake`, and continues. To a supervisor,
    a sleeping state is a call that takes long. So is one that waits for a person, whose answer may come only after
    the run has been resumed.

    Two rules for authors. First, the runtime works on a deep copy of the given instance, so before `init` an
    instance holds settings only and no data of a run. Second, the runtime commits states in the order in which
    answers arrive. To make runs reproducible, let decisions depend on the set of committed states (for example
    sorted by `path`), never on the order of their arrival. Random decisions derive from `seed`.
    """

    seed: int = 0
    """Seed of random decisions. The runtime sets it before `init`; it derives from the seed of the run."""

    def check(self, graph: FlowGraph) -> None:  # noqa: B027
        """Raise `SupervisorError` if this supervisor does not suit an agent with this flow graph.

        Called when an agent is defined with the supervisor, and before a run.
        """

    @abstractmethod
    def init(self, states: Sequence[State]) -> None:
        """Begin a run with these initial states, which have no parent.

        Each has already run up to its first operation, or to its end.
        """

    @abstractmethod
    def fire(self) -> Iterable[Decision]:
        """Return which states to fire now, which states to drop, and which agents to ask."""

    @abstractmethod
    def commit(self, state: State) -> None:
        """Receive a new state, which may be waiting, final or dead.

        It is the result of a transition, or of an agent that this supervisor asked (see `Ask`).
        """

    def wake(self, state: State) -> None:  # noqa: B027
        """Learn that the agent that `state` was waiting for has yielded or ended.

        For information only: the runtime continues the firing by itself.
        """

    def __repr__(self) -> str:
        """Show the settings: parameters of `__init__` that the instance keeps under the same name.

        Numbers are always shown, because they determine the size of a search; other settings only if they
        differ from their default.
        """
        shown = [
            f"{name}={show_setting(value)}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if (value := getattr(self, name, parameter.default)) != parameter.default
            or isinstance(value, (int, float))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def show_setting(value: object) -> str:
    """Return the text of a setting. It is the same in every process: it has no function addresses."""
    if inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)


@runtime_checkable
class SearchedAgent(AgentContract, Protocol):
    """An agent, with what a search needs of it."""

    @property
    def program(self) -> Program: ...
    @property
    def supervisor(self) -> Supervisor: ...


def check_firing(supervisor: Supervisor, decision: Fire) -> None:
    """Raise `SupervisorError` if a decision to fire breaks a rule."""
    state, option = decision.state, decision.option
    rule = None
    if state.kind != "waiting" or state.closed:
        why = f"is {state.kind}" if state.kind != "waiting" else "was fired for the last time, or dropped"
        rule = f", but that state {why}; fire waiting states only, and give last=False if a state is to be fired again"
    elif decision.times < 1:
        rule = ": times must be at least 1"
    elif option is not None and not 0 <= option < state.options:
        rule = (
            f", but that state has {state.options} options; `state.options` says how many, and counts from 0"
        )
    if rule is not None:
        raise SupervisorError(f"{supervisor} decided {decision!r}{rule}")


def check_drop(supervisor: Supervisor, state: State) -> None:
    """Raise `SupervisorError` if a decision to drop a state breaks a rule."""
    if state.kind != "waiting" or (state.closed and not state.unfinished):
        why = f"is {state.kind}" if state.kind != "waiting" else "has no firing left to cancel"
        raise SupervisorError(
            f"{supervisor} drops {state!r}, but that state {why}; drop waiting states only, and only once"
        )
