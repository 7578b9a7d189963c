"""Tools: functions with effects outside the agent, as operations."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    overload,
)

from hive_frontend import telemetry
from hive_frontend.client.tools import WaitsFor, check_tool_settings
from hive_frontend.errors import ToolTimeout
from hive_frontend.operation import Operation, entered, tracked
from hive_frontend.operations.fork import Memo, closure_of, copy
from hive_frontend.operations.native import NativeScope
from hive_frontend.operations.transition import Transition
from hive_frontend.operations.workspace import Workspace

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
X = TypeVar("X")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True, eq=False, repr=False)
class Tool(Operation[Any]):
    """A call of a function, not made yet."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str | None
    _timeout_s: float | None
    _rerun: bool
    _waits_for: WaitsFor
    _passes_key: bool = field(default=False, kw_only=True)
    """Whether the function gets an idempotency key."""

    async def perform(self, transition: Transition) -> Any:
        # Agents and models that the function calls get paths below this transition's.
        scope = NativeScope(transition.session, transition.caller, transition.new_inner_path())
        with entered(scope):
            if self.must_repeat:
                return await self._call(transition)
            return await transition.session.journaled(self, transition, lambda: self._call(transition))

    @property
    def must_repeat(self) -> bool:
        """Whether the call must be repeated when a run is resumed from a checkpoint.

        The directories of workspaces do not outlive a process; repeating the calls creates them again.
        """
        return self._rerun or _holds_workspace((self.function, self.args, self.kwargs), set())

    @property
    def label(self) -> str:
        """Name of the function."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))

    async def _call(self, transition: Transition) -> Any:
        attributes = {
            "gen_ai.tool.name": self.name or self.label,
            "gen_ai.tool.type": "function",
            "gen_ai.agent.name": transition.caller.agent,
        }
        async with transition.caller.meter.in_time():
            with (
                telemetry.span("execute_tool", self.name or self.label, attributes),
                transition.session.waiting(self.function, self._waits_for),
            ):
                return await self._result(transition)

    async def _result(self, transition: Transition) -> Any:
        kwargs = self.kwargs
        if self._passes_key:
            kwargs = {**kwargs, "idempotency_key": transition.session.idempotency_key(transition)}
        if inspect.iscoroutinefunction(self.function):
            result: Any = self.function(*self.args, **kwargs)
        else:
            result = await transition.session.threads.call(lambda: self._called(kwargs), self._limit)
        if not inspect.isawaitable(result):
            return result
        async with self._limit():
            return await result

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        """Raise `ToolTimeout` if the block takes too long."""
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ToolTimeout(f"tool {self.label} took longer than {self._timeout_s:g} seconds") from error

    def _called(self, kwargs: dict[str, Any]) -> Any:
        """Call the function. A `StopIteration` becomes a `RuntimeError`, because futures cannot raise it."""
        try:
            return self.function(*self.args, **kwargs)
        except StopIteration as error:
            raise RuntimeError("tool raised StopIteration") from error

    def __fork__(self, memo: Memo) -> Tool:
        forked = (copy(self.function, memo), copy(self.args, memo), copy(self.kwargs, memo))
        return Tool(
            *forked, self.name, self._timeout_s, self._rerun, self._waits_for, _passes_key=self._passes_key
        )


def _holds_workspace(value: Any, seen: set[int]) -> bool:
    """Return whether a function or an argument is, or refers to, a workspace."""
    if isinstance(value, Workspace):
        return True
    if id(value) in seen or isinstance(value, (str, bytes, int, float, type, ModuleType)):
        return False
    seen.add(id(value))
    match value:
        case MethodType():
            parts: Iterable[Any] = [value.__self__]
        case FunctionType():
            parts = [value for _, value in closure_of(value)]
        case functools.partial():
            parts = [value.func, *value.args, *value.keywords.values()]
        case dict():
            parts = value.values()
        case list() | tuple() | set() | frozenset():
            parts = value
        case _:
            parts = getattr(value, "__dict__", {}).values()
    return any(_holds_workspace(part, seen) for part in parts)


class ToolSettings(TypedDict, total=False):
    """The settings of `tool`, for type checkers."""

    name: str | None
    timeout: float | None
    rerun: bool
    idempotency_key: bool
    waits_for: WaitsFor


# Keywords of `tool` cannot be typed beside `**kwargs: P.kwargs`. So the types know three ways to call it: with
# the function's arguments alone; with positional arguments, then settings; and with fewer positional arguments, then
# the function's others and settings by keyword, which are not checked.
@overload
def tool(function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Operation[R]: ...
@overload
def tool(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Operation[R]: ...
@overload
def tool(
    function: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **settings: Unpack[ToolSettings]
) -> Operation[R]: ...
@overload
def tool(function: Callable[[*Ts], R], /, *args: *Ts, **settings: Unpack[ToolSettings]) -> Operation[R]: ...
@overload
def tool(function: Callable[Concatenate[X, ...], Awaitable[R]], /, **kwargs: Any) -> Operation[R]: ...
@overload
def tool(
    function: Callable[Concatenate[A, X, ...], Awaitable[R]], a: A, /, **kwargs: Any
) -> Operation[R]: ...
@overload
def tool(
    function: Callable[Concatenate[A, B, X, ...], Awaitable[R]], a: A, b: B, /, **kwargs: Any
) -> Operation[R]: ...
@overload
def tool(function: Callable[Concatenate[X, ...], R], /, **kwargs: Any) -> Operation[R]: ...
@overload
def tool(function: Callable[Concatenate[A, X, ...], R], a: A, /, **kwargs: Any) -> Operation[R]: ...
@overload
def tool(function: Callable[Concatenate[A, B, X, ...], R], a: A, b: B, /, **kwargs: Any) -> Operation[R]: ...
def tool(  # type: ignore[misc]  # mypy does not match it with `*args: *Ts`.
    function: Callable[..., Any],
    /,
    *args: Any,
    name: str | None = None,
    timeout: float | None = None,
    rerun: bool = False,
    idempotency_key: bool = False,
    waits_for: WaitsFor = "tool",
    **kwargs: Any,
) -> Operation[Any]:
    """Call a function as an operation: `log = await tool(simulate, design, cycles=100)`.

    An `async def` runs in the event loop, any other function in a thread, so that other branches continue
    meanwhile. Each firing of the state calls it again, with that branch's own copies of the arguments. Its exceptions
    are raised at the `await`. After `timeout` seconds, not counting the wait for a thread, `ToolTimeout` is raised; a
    thread cannot be stopped and keeps running in the background. `name` names the state; the default is the
    function's name. (Use `functools.partial` for a function that itself has parameters of these names.)

    When a run is resumed from a checkpoint, tools that had returned are not called again: their results are in the
    checkpoint. So a tool should return its results instead of changing the agent's data; a run cannot be resumed
    after a tool that changed them (`JournalError`). With `rerun` the call is repeated instead, which is right for
    tools that can be called twice with the same effect. Calls with a `Workspace`, also within another argument, are
    always repeated.

    With `idempotency_key=True` the function gets a key as its argument `idempotency_key`, to pass on to a service that
    does not repeat a request whose key it knows. The key is the same if a resumed run calls the function again, because
    the process ended between the call and the checkpoint of its result; every other call has another key.

    While a session only waits for tools, its Hive server is told so, and how long the function usually takes, to decide
    which KV to keep meanwhile. `waits_for="human"` says that the function waits for a person.
    """
    if not callable(function):
        raise TypeError(f"tool takes a function and its arguments, not {function!r}")
    check_tool_settings(timeout, waits_for)
    label = name or cast("str | None", getattr(function, "__name__", None))
    if not isinstance(idempotency_key, bool):
        raise TypeError(
            f"idempotency_key must be True or False, not {idempotency_key!r}: Hive makes the key, and passes it to the "
            "function as idempotency_key"
        )
    call = Tool(function, args, kwargs, label, timeout, rerun, waits_for, _passes_key=idempotency_key)
    return tracked(call)
