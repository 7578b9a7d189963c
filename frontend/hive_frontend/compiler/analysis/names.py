"""What the names in a function refer to, as far as that is known before it runs."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from hive_frontend.compiler.running.support import is_foreign

AWAITED = frozenset({"gen", "prefill", "decode", "gather", "tool", "choose"})
"""Names of Hive's functions whose results do nothing until they are awaited."""
_PACKAGE = __name__.partition(".")[0]


class Names:
    """What the global, enclosing and built-in names of a function refer to now."""

    def __init__(self, function: FunctionType) -> None:
        code = function.__code__
        self.locals = frozenset(code.co_varnames) | frozenset(code.co_cellvars)
        self.free: dict[str, Any] = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._globals = function.__globals__

    def resolve(self, node: ast.expr) -> object:
        """The object that a name or a dotted name refers to; None if that is not known yet."""
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            # Only through modules and the like: the attribute of an instance may be computed.
            return (
                None if owner is None else vars(owner).get(node.attr) if hasattr(owner, "__dict__") else None
            )
        if not isinstance(node, ast.Name) or node.id in self.locals:
            return None
        if node.id in self.free:
            try:
                return self.free[node.id].cell_contents
            except ValueError:
                return None
        return self._globals.get(node.id, getattr(builtins, node.id, None))

    def helper(self, node: ast.expr) -> FunctionType | None:
        """The `async def` function that a call of `node` runs, if that is known."""
        return helper(self.resolve(node))


def helper(called: object) -> FunctionType | None:
    """The `async def` function that stands behind `called`."""
    while isinstance(called, functools.partial):
        called = called.func
    if isinstance(called, staticmethod):
        called = called.__func__
    is_helper = isinstance(called, FunctionType) and inspect.iscoroutinefunction(called)
    return called if is_helper and isinstance(called, FunctionType) and not is_foreign(called) else None


def is_own_operation(called: object) -> bool:
    """Whether `called` is one of Hive's functions that describe operations, such as `gen`."""
    return (
        isinstance(called, FunctionType)
        and (called.__module__ or "").partition(".")[0] == _PACKAGE
        and not inspect.iscoroutinefunction(called)
    )


def never_awaitable(called: object) -> bool:
    """Whether what a call of `called` gives can surely not be awaited by an agent."""
    if isinstance(called, FunctionType):
        return inspect.iscoroutinefunction(called) and is_foreign(called)
    if isinstance(called, type):
        return called.__module__ == "builtins"
    return isinstance(called, (BuiltinFunctionType, ModuleType))
