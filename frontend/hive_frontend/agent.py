"""The `@agent` decorator and what it makes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from hive_frontend.compiler import Program, compile_agent
from hive_frontend.flow_graph import FlowGraph
from hive_frontend.identity import check_label
from hive_frontend.scope import NativeScope, current_scope, entered
from hive_frontend.supervisors.base import Supervisor
from hive_frontend.supervisors.once import Once

P = ParamSpec("P")
R = TypeVar("R")


class Agent(Generic[P, R]):
    """An `async def` that can be searched.

    Calling it gives an ordinary coroutine, which runs the function as Python would. `run` and `arun` run its
    compiled form instead, under its supervisor, which forks its states and keeps the promising ones.
    """

    def __init__(
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        *,
        name: str | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        if not isinstance(function, FunctionType) or not inspect.iscoroutinefunction(function):
            kind = "an async generator" if inspect.isasyncgenfunction(function) else repr(function)
            raise TypeError(f"@agent goes on an `async def` function that returns its result, not on {kind}")
        if supervisor is not None and not isinstance(supervisor, Supervisor):
            hint = "()" if isinstance(supervisor, type) else ""
            raise TypeError(f"supervisor must be a Supervisor, not {supervisor!r}{hint and '; add ()'}")
        self.name = check_label("the name of an agent", function.__name__ if name is None else name)
        self.supervisor: Supervisor = Once() if supervisor is None else supervisor
        self._function: Callable[P, Coroutine[Any, Any, R]] = function
        self._signature = inspect.signature(function)
        self.program: Program = compile_agent(function, self.name)
        self.supervisor.check(self.program.graph)
        functools.update_wrapper(self, function)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        scope = current_scope()
        if not isinstance(scope, NativeScope):
            return await self._function(*args, **kwargs)
        with entered(NativeScope(scope.session, self.name)):
            return await self._function(*args, **kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The values of all parameters for a call with these arguments; `TypeError` if they do not fit."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"agent {self.name}{self._signature}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def graph(self) -> FlowGraph:
        """The flow graph: the agent's states, and which can follow which."""
        return self.program.graph

    def source(self) -> str:
        """The code that the compiler emitted: one function per state."""
        return self.program.listing()

    def __repr__(self) -> str:
        return f"<agent {self.name}{self._signature}>"


@overload
def agent(function: Callable[P, Coroutine[Any, Any, R]], /) -> Agent[P, R]: ...
@overload
def agent(
    *, supervisor: Supervisor | None = None, name: str | None = None
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Agent[P, R]]: ...
def agent(
    function: Callable[P, Coroutine[Any, Any, R]] | None = None,
    /,
    *,
    supervisor: Supervisor | None = None,
    name: str | None = None,
) -> Agent[P, R] | Callable[[Callable[P, Coroutine[Any, Any, R]]], Agent[P, R]]:
    """Make an agent of an `async def` function.

        @agent(supervisor=TreeOfThoughts(branch_at="propose", branching=8, breadth=5))
        async def solve(puzzle: str) -> str:
            step = await gen(..., name="propose")
            ...

    `supervisor` decides which of its states run, and how often (`Once` if not given). `name` is the agent's
    identity at the server, by default the function's name. The function is compiled here, so that everything
    it uses that cannot be searched is reported here.
    """

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Agent[P, R]:
        return Agent(function, name=name, supervisor=supervisor)

    return decorate if function is None else decorate(function)
