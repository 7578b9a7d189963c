"""Tools: functions that do something outside the agent, as operations."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar, cast, overload

from hive_frontend.errors import ToolTimeout
from hive_frontend.fork import Memo, copy
from hive_frontend.operation import Operation, to_be_awaited
from hive_frontend.scope import NativeScope, entered
from hive_frontend.transition import Transition
from hive_frontend.workspace import Workspace

R = TypeVar("R")


class Tool(Operation[Any]):
    """One call of a function, described but not made."""

    __slots__ = ("_args", "_function", "_kwargs", "_timeout_s", "name")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None,
        timeout_s: float | None,
    ) -> None:
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self.name = name
        self._timeout_s = timeout_s

    async def perform(self, transition: Transition) -> Any:
        # Agents and models that the function calls are numbered after this transition.
        scope = NativeScope(transition.session, transition.caller, transition.new_inner_path())
        with entered(scope):
            if self._rebuilds():
                return await self._call()
            return await transition.session.journaled(transition, self._call)

    def _rebuilds(self) -> bool:
        """Whether the call has to be made again where a run goes on from a checkpoint.

        The directories of workspaces do not outlive a process; making the calls again makes them anew.
        """
        return _holds_workspace((self._function, self._args, self._kwargs), set())

    async def _call(self) -> Any:
        if inspect.iscoroutinefunction(self._function):
            work: Awaitable[Any] = self._function(*self._args, **self._kwargs)
        else:
            work = asyncio.to_thread(_without_stop, self._function, self._args, self._kwargs)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                result = await work
                return await result if inspect.isawaitable(result) else result
        except TimeoutError as error:
            if not limit.expired():
                raise
            label = getattr(self._function, "__qualname__", repr(self._function))
            raise ToolTimeout(f"tool {label} took longer than {self._timeout_s:g} seconds") from error

    def __fork__(self, memo: Memo) -> Tool:
        return Tool(
            copy(self._function, memo),
            copy(self._args, memo),
            copy(self._kwargs, memo),
            self.name,
            self._timeout_s,
        )


def _without_stop(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function. Like coroutines, futures cannot end in a `StopIteration`."""
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("tool raised StopIteration") from error


def _holds_workspace(value: Any, seen: set[int]) -> bool:
    """Whether a function or an argument is, or refers to, a workspace."""
    if isinstance(value, Workspace):
        return True
    if id(value) in seen or isinstance(value, (str, bytes, int, float, type, ModuleType, FunctionType)):
        return False
    seen.add(id(value))
    match value:
        case MethodType():
            parts: Iterable[Any] = [value.__self__]
        case functools.partial():
            parts = [value.func, *value.args, *value.keywords.values()]
        case dict():
            parts = value.values()
        case list() | tuple() | set() | frozenset():
            parts = value
        case _:
            parts = getattr(value, "__dict__", {}).values()
    return any(_holds_workspace(part, seen) for part in parts)


@overload
def tool(
    function: Callable[..., Awaitable[R]],
    /,
    *args: Any,
    name: str | None = ...,
    timeout: float | None = ...,
    **kwargs: Any,
) -> Operation[R]: ...
@overload
def tool(
    function: Callable[..., R],
    /,
    *args: Any,
    name: str | None = ...,
    timeout: float | None = ...,
    **kwargs: Any,
) -> Operation[R]: ...
def tool(
    function: Callable[..., Any],
    /,
    *args: Any,
    name: str | None = None,
    timeout: float | None = None,
    **kwargs: Any,
) -> Operation[Any]:
    """Call a function that does something: `log = await tool(simulate, design, cycles=100)`.

    An `async def` runs in the event loop, any other function in a thread, so that other branches go on
    meanwhile. Each firing of the state calls it again, with that branch's own copies of the arguments. What
    it raises is raised at the `await`. After `timeout` seconds `ToolTimeout` is raised; a thread cannot be
    stopped and runs on. `name` names the state, by default after the function. (A function that has
    parameters called `name` or `timeout` itself is given them with `functools.partial`.)

    Where a run is resumed from a checkpoint, tools that had returned are not called again; their results
    come from the checkpoint. So a tool should change nothing that the agent holds, but return what is new. Calls
    that are given a `Workspace`, on their own or within another argument, are the exception: they are made again.
    """
    if not callable(function):
        raise TypeError(f"tool takes a function and its arguments, not {function!r}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
    label = name or cast("str | None", getattr(function, "__name__", None))
    return to_be_awaited(Tool(function, args, kwargs, label, timeout))
