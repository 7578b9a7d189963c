"""The functions that emitted code calls, by their hidden names."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, CoroutineType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

from hive_frontend.compiler.running import hidden
from hive_frontend.compiler.running.handled import (
    Handled,
    handled,
    join_contexts,
    reraise,
    restore,
    saved,
)
from hive_frontend.compiler.running.held import hold
from hive_frontend.compiler.running.outcome import Invoke, Point, Returned, Suspended, Yield
from hive_frontend.errors import ForeignAwait, HiveError
from hive_frontend.operation import Operation

WHAT_WORKS = (
    "await gen, gather, tool(fn, ...), a child's next or resume, an agent, or an `async def` helper; "
    "wrap other awaitables in tool(...), which also takes an `async def`: await tool(fetch, url)"
)
_MISSING = object()


class NotAnOperation(HiveError, TypeError):
    """Agent code awaits something that is not an operation. In agent code it is raised as a `ForeignAwait`."""


class Unbound:
    """Marks a variable without a value among the arguments of a segment."""


NO_WAIT: Any = object()
"""The operation of a join, which resumes at once."""


class BoundBuiltin:
    """A bound method of a built-in object, such as `found.append`, that can be forked.

    Copying treats built-in functions as atoms, so a copied method would still act on the original list.
    """

    __slots__ = ("name", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.owner, self.name)(*args, **kwargs)


def is_bound_builtin(value: Any) -> bool:
    """Whether `value` is a method of an object of a built-in type."""
    return isinstance(value, (BuiltinFunctionType, MethodWrapperType)) and not isinstance(
        value.__self__, (ModuleType, type, type(None))
    )


def is_foreign(function: FunctionType) -> bool:
    """Whether a coroutine function is from Python's standard library; such functions need an event loop."""
    return (function.__module__ or "").partition(".")[0] in sys.stdlib_module_names


def _bind(value: Any) -> Any:
    return BoundBuiltin(value.__self__, value.__name__) if is_bound_builtin(value) else value


def _bound(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table}


def _callee(function: Any) -> Any:
    """Return what to call in place of `function` where the code awaits the result.

    The emitted code makes the call itself, so that tracebacks are the same as without Hive.
    """
    kind = type(function)
    if kind is FunctionType:
        is_coroutine = function.__code__.co_flags & inspect.CO_COROUTINE
        return functools.partial(_invoke, function) if is_coroutine else function
    if kind is MethodType:
        method = _callee(function.__func__)
        same = method is function.__func__
        return function if same else functools.partial(method, function.__self__)
    if kind is functools.partial:
        inner = _callee(function.func)
        return (
            function
            if inner is function.func
            else functools.partial(inner, *function.args, **function.keywords)
        )
    if hasattr(kind, "__hive_call__"):
        return function.__hive_call__
    own = getattr(kind, "__call__", None)  # noqa: B004
    if type(own) is FunctionType and inspect.iscoroutinefunction(own):
        return functools.partial(_invoke, own, function)
    return function


def _invoke(function: FunctionType, /, *args: Any, **kwargs: Any) -> Invoke:
    if is_foreign(function):
        raise ForeignAwait(
            NotAnOperation(
                f"{function.__module__}.{function.__qualname__} needs an event loop and cannot be forked: "
                f"{WHAT_WORKS}"
            )
        )
    # The coroutine never starts. It is made so that Python itself binds the arguments and reports errors in them.
    coroutine = function(*args, **kwargs)
    values = coroutine.cr_frame.f_locals
    arguments = {name: values[name] for name in parameters_of(function)}
    coroutine.close()
    return Invoke(function, arguments)


def parameters_of(function: FunctionType) -> tuple[str, ...]:
    """Return the names of all parameters."""
    code = function.__code__
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]


def _as_operation(awaited: Any) -> Operation[Any] | Invoke:
    convert = getattr(type(awaited), "__hive_operation__", None)
    operation = None if convert is None else convert(awaited)
    if isinstance(operation, (Operation, Invoke)):
        return operation
    what = repr(awaited)
    if isinstance(awaited, CoroutineType):
        what = f"a coroutine of {awaited.__qualname__}"
        awaited.close()
    raise ForeignAwait(NotAnOperation(f"the agent awaits {what}, which an agent cannot await: {WHAT_WORKS}"))


def functions(points: Sequence[Point]) -> dict[str, Any]:
    """Return the values of the hidden names in the code of a program with these suspension points."""

    def suspend(index: int, operation: Any, variables: dict[str, Any]) -> Suspended:
        if operation is not NO_WAIT and not isinstance(operation, (Invoke, Yield, Operation)):
            operation = _as_operation(operation)
        return Suspended(points[index], operation, variables)

    return {hidden.SUSPEND: suspend, **_FUNCTIONS}


def _bound_enter(manager: Any) -> Callable[[], Any]:
    """Return the `__enter__` of a context manager.

    Raises:
        TypeError: if it lacks `__enter__` or `__exit__`.
    """
    enter = _method_of(manager, "__enter__")
    protocol = f"{type(manager).__name__!r} object does not support the context manager protocol"
    if enter is _MISSING:
        raise TypeError(protocol)
    if _method_of(manager, "__exit__") is _MISSING:
        raise TypeError(f"{protocol} (missed __exit__ method)")
    return enter  # type: ignore[no-any-return]


def _bound_exit(manager: Any) -> Callable[..., Any]:
    """Return the `__exit__` of a context manager."""
    return _method_of(manager, "__exit__")  # type: ignore[no-any-return]


def _method_of(manager: Any, name: str) -> Any:
    """Look a method up on the type, as the `with` statement does."""
    kind = type(manager)
    for base in kind.__mro__:
        if name in vars(base):
            found = vars(base)[name]
            return found.__get__(manager, kind) if hasattr(type(found), "__get__") else found
    return _MISSING


_FUNCTIONS: Mapping[str, Any] = {
    hidden.RETURN: Returned,
    hidden.YIELD: Yield,
    hidden.CALLEE: _callee,
    hidden.ITER: builtins.iter,
    hidden.BIND: _bind,
    hidden.HOLD: hold,
    hidden.BOUND: _bound,
    hidden.LOCALS: builtins.locals,
    hidden.TYPE: builtins.type,
    hidden.HANDLED: handled,
    hidden.SAVED: saved,
    hidden.RERAISE: reraise,
    hidden.RESTORE: restore,
    hidden.JOIN_CONTEXTS: join_contexts,
    hidden.ENTER: _bound_enter,
    hidden.EXIT: _bound_exit,
    hidden.EXC_INFO: sys.exc_info,
    hidden.UNBOUND: Unbound,
    hidden.NO_WAIT: NO_WAIT,
    hidden.THROWN: Handled,
    hidden.RETURNED: Returned,
}
