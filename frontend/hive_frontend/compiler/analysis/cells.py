"""Finds the cell variables: those that nested functions share with the agent.

A nested function refers to variables of the frame in which it was created, not to their values. An agent has a new
frame after each await, so these variables stay in cells, as in Python itself. A state carries the cell; the function
that resumes the state and all nested functions of the branch close over it. Forks keep this sharing, because they copy
cells and functions under one memo.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType

from hive_frontend.compiler.analysis.names import Names
from hive_frontend.compiler.analysis.syntax import has_await, own_nodes
from hive_frontend.compiler.running.hidden import HIDDEN

Closure = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.GeneratorExp
_CLOSURES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp)

_ITERATION = f"{HIDDEN}each_"
_IMMEDIATE = frozenset(
    getattr(builtins, name)
    for name in ("all", "any", "dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple")
)
"""Functions that do not keep the functions and generators in their arguments after they return."""


def cell_variables(function: FunctionType, body: Iterable[ast.stmt], names: Names) -> frozenset[str]:
    """Return the variables of `function` that a nested function may use after an await; `body` is prepared."""
    captured = frozenset(function.__code__.co_cellvars)
    if not captured:
        return captured
    return captured & frozenset().union(*map(_mentioned, _outliving(body, names)))


def captured_by_classes(
    function: FunctionType, body: Iterable[ast.stmt], names: Names
) -> Iterator[tuple[ast.AST, list[str]]]:
    """Yield classes whose methods use variables of the agent. Forks share classes, and thereby the variables."""
    captured = frozenset(function.__code__.co_cellvars)
    for node in _outliving(body, names):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in ast.walk(node) if isinstance(each, _CLOSURES) and each is not node]
            if found := captured & frozenset().union(*map(_mentioned, methods)):
                yield node, sorted(found)


def captured_iteration_variables(
    body: Iterable[ast.stmt], names: Names
) -> Iterator[tuple[ast.AST, list[str]]]:
    """Yield nested functions that use the iteration variables of a comprehension with an await.

    Each evaluation of a comprehension has its own variables; the loop that the compiler emits for it does not.
    """
    for closure in _outliving(body, names):
        variables = {
            name.removeprefix(_ITERATION).rpartition("_")[0]
            for name in _mentioned(closure)
            if name.startswith(_ITERATION)
        }
        if variables:
            yield closure, sorted(variables)


def _outliving(body: Iterable[ast.stmt], names: Names) -> Iterator[Closure]:
    """Yield nested functions that may be called after the next await."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, _CLOSURES):
            yield node
        at_once: list[ast.expr] = []
        if isinstance(node, ast.Call) and _runs_immediately(node.func, names) and not has_await(node):
            at_once = [
                given
                for given in (*node.args, *(keyword.value for keyword in node.keywords))
                if isinstance(given, (ast.Lambda, ast.GeneratorExp)) and not _has_closure(given)
            ]
        todo += [child for child in _children(node) if child not in at_once]


def _runs_immediately(function: ast.expr, names: Names) -> bool:
    match function:
        case ast.Attribute(value=ast.Constant(value=str()), attr="join"):
            return True
    called = names.resolve(function)
    return isinstance(called, (type, BuiltinFunctionType)) and called in _IMMEDIATE


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword):
            yield child.value
        else:
            yield child


def _has_closure(closure: ast.Lambda | ast.GeneratorExp) -> bool:
    return any(node is not closure and isinstance(node, _CLOSURES) for node in ast.walk(closure))


def _mentioned(closure: Closure) -> set[str]:
    """Return all names in a nested function, its own variables included: unneeded cells do no harm."""
    # Expressions that are evaluated at the definition, such as defaults, capture nothing.
    at_once = closure.generators[0].iter if isinstance(closure, ast.GeneratorExp) else closure
    evaluated = set(own_nodes(at_once))
    found: set[str] = set()
    for node in ast.walk(closure):
        if isinstance(node, ast.Name) and node not in evaluated:
            found.add(node.id)
        elif isinstance(node, ast.Nonlocal):
            found.update(node.names)
    return found
