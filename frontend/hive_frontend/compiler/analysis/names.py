"""Resolves the names in a function, as far as they are known before it runs."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from hive_frontend.compiler.running.support import is_foreign

MODEL_CALLS = frozenset({"gen", "prefill", "decode"})
AWAITED = MODEL_CALLS | {"gather", "tool", "choose", "ask_human"}
"""Names of Hive's functions whose results have no effect until they are awaited."""
_PACKAGE = __name__.partition(".")[0]


class Names:
    """Resolves the global, enclosing and built-in names of a function to their current values."""

    def __init__(self, function: FunctionType) -> None:
        code = function.__code__
        self.locals = frozenset(code.co_varnames) | frozenset(code.co_cellvars)
        self.free: dict[str, Any] = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._globals = function.__globals__

    def resolve(self, node: ast.expr) -> object:
        """Return the object that a name or a dotted name refers to; None if it is not known yet."""
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            # Read `vars` only: `getattr` on an instance could run code.
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
        """Return the `async def` function that a call of `node` runs, or None if it is not known."""
        return helper(self.resolve(node))


def helper(called: object) -> FunctionType | None:
    """Return the `async def` function that `called` is or wraps, or None."""
    while isinstance(called, functools.partial):
        called = called.func
    if isinstance(called, staticmethod):
        called = called.__func__
    is_helper = isinstance(called, FunctionType) and inspect.iscoroutinefunction(called)
    return called if is_helper and isinstance(called, FunctionType) and not is_foreign(called) else None


def is_own_operation(called: object) -> bool:
    """Whether `called` is one of Hive's functions that return operations, such as `gen`."""
    return (
        isinstance(called, FunctionType)
        and (called.__module__ or "").partition(".")[0] == _PACKAGE
        and not inspect.iscoroutinefunction(called)
    )


def never_awaitable(called: object) -> bool:
    """Whether an agent can certainly not await the result of calling `called`."""
    if isinstance(called, FunctionType):
        return inspect.iscoroutinefunction(called) and is_foreign(called)
    if isinstance(called, type):
        return called.__module__ == "builtins"
    return isinstance(called, (BuiltinFunctionType, ModuleType))
