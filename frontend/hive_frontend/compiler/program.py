"""A compiled function: the functions of its states, and what is known of it before it runs."""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType
from typing import Any

from hive_frontend.compiler.emission.flow import OwnFlow, code_hash, flow_graph
from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.compiler.running.handled import as_carried, strip_own_frames
from hive_frontend.compiler.running.hidden import HELD
from hive_frontend.compiler.running.outcome import Outcome, Point, Suspended, Thrown
from hive_frontend.compiler.running.support import NO_WAIT
from hive_frontend.operations.fork import ATOMS, copy, is_definition

_SHARED = ATOMS | {FunctionType}


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled `async def`. It is immutable and shared by all runs; states hold everything that changes."""

    name: str
    function: FunctionType
    points: tuple[Point, ...]
    is_generator: bool
    hidden: Mapping[str, str]
    """Descriptions of the variables that the compiler added."""
    shared: frozenset[str]
    """Variables and parameters annotated with `Shared[...]`: all branches have the same object."""
    joined: bool
    """Whether it has joins: suspension points that resume at once (see `lowering.joins`)."""
    flow: OwnFlow
    """Its part of the flow graph, without its helpers."""
    listing: Callable[[], str]
    """Returns the emitted code as text."""
    _make: Callable[[FunctionType], tuple[Callable[..., Outcome], ...]]
    """Makes the functions of the states for a function with the same code and another closure."""
    _start: Callable[..., Outcome]
    _resume: tuple[Callable[..., Outcome], ...]

    def start(self, arguments: Mapping[str, Any]) -> Outcome:
        """Run the function from its start to its first await or yield, or to its end."""
        try:
            outcome = self._start(**arguments)
            if self.joined:
                outcome = self._through_joins(outcome)
        except self._not_raised as error:
            raise self._instead_of(error) from error
        return outcome

    def resume(self, point: Point, variables: Mapping[str, Any], answer: Any) -> Outcome:
        """Run the function from the answer at `point` to its next await or yield, or to its end.

        An answer that is `Thrown` is raised where the function awaits it.
        """
        if type(answer) is Thrown:
            strip_own_frames(answer.error)
            answer = as_carried(answer.error)
        try:
            outcome = self._resume[point.index](answer, **variables)
            if self.joined:
                outcome = self._through_joins(outcome)
        except self._not_raised as error:
            raise self._instead_of(error) from error
        return outcome

    def _through_joins(self, outcome: Outcome) -> Outcome:
        while type(outcome) is Suspended and outcome.operation is NO_WAIT:
            outcome = self._resume[outcome.point.index](None, **outcome.variables)
        return outcome

    @property
    def _not_raised(self) -> tuple[type[Exception], ...]:
        """Exceptions that signal the end of an iterator. Python replaces them by `RuntimeError` (PEP 479)."""
        return (StopIteration, StopAsyncIteration) if self.is_generator else (StopIteration,)

    def _instead_of(self, error: Exception) -> RuntimeError:
        what = "async generator" if self.is_generator else "coroutine"
        return RuntimeError(f"{what} raised {type(error).__name__}")

    @cached_property
    def graph(self) -> FlowGraph:
        """The flow graph, including the helpers that are known before any run."""
        return flow_graph(self.name, self.flow)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The state names that a supervisor can refer to."""
        return self.graph.state_names

    @cached_property
    def code_hash(self) -> str:
        """A hash of the code, including the helpers that are known before any run.

        Layout, comments and docstrings do not count.
        """
        return code_hash(self.flow)

    def named(self, name: str) -> Program:
        """Return the same program with another name."""
        return self if name == self.name else replace(self, name=name)

    def __fork__(self, memo: dict[int, Any]) -> Program:
        """Return the program for the copy of its function, if the closure has variables of the branch."""
        function = copy(self.function, memo)
        if function is self.function:
            return self
        start, *resume = self._make(function)
        return replace(self, function=function, _start=start, _resume=tuple(resume))

    @cached_property
    def is_definition(self) -> bool:
        """Whether its function is defined in a module or class, not created by code at run time."""
        return is_definition(self.function)

    def outer_objects(self, *, closure: bool = True) -> dict[int, Any]:
        """Return the objects that global and enclosing names of the function refer to, by id.

        Forks do not copy them, so a local variable that holds one of them refers to the same object in every fork:
        `if best is MISSING` stays true.
        """
        function = self.function
        objects: dict[int, Any] = self._outer_functions.copy()
        # Not cached: a helper may have assigned the name another value.
        for found in map(function.__globals__.get, self._outer_names):
            if type(found) not in _SHARED:
                objects[id(found)] = found
        if closure and function.__closure__:
            for cell in function.__closure__:
                objects[id(cell)] = cell
                with suppress(ValueError):  # The variable may have no value yet.
                    objects[id(cell.cell_contents)] = cell.cell_contents
        return objects

    @cached_property
    def _outer_functions(self) -> dict[int, FunctionType]:
        """Functions that global names refer to and that a fork would copy. Cached: such names are not reassigned."""
        found = map(self.function.__globals__.get, self._outer_names)
        return {
            id(each): each for each in found if isinstance(each, FunctionType) and not is_definition(each)
        }

    @cached_property
    def _outer_names(self) -> tuple[str, ...]:
        """The global names that the function reads."""
        instructions = dis.get_instructions(self.function.__code__)
        return tuple(dict.fromkeys(each.argval for each in instructions if each.opname == "LOAD_GLOBAL"))

    def describe(self, variable: str) -> str:
        """Describe a variable of a state, the user's or one that the compiler added, for messages."""
        if variable == HELD:
            return "a variable that the agent does not read again"
        return self.hidden.get(variable) or f"variable {variable!r}"
