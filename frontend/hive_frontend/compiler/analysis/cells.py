"""Finds the variables that live in cells: those that nested functions share with the agent.

A nested function refers to variables of the frame that it was made in, not to their values. The frame of an
agent is made anew after each await, so these variables are kept in the cells that Python itself would keep
them in: a state carries the cell, the function that goes on from there closes over it, and so does every
nested function, in which branch ever, because a fork copies cells and functions under one memo.
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

_TURN = f"{HIDDEN}each_"
_DONE_AT_ONCE = frozenset(
    getattr(builtins, name)
    for name in ("all", "any", "dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple")
)
"""They are done with the functions and generators that they are given when they return."""


def cell_variables(function: FunctionType, body: Iterable[ast.stmt], names: Names) -> frozenset[str]:
    """Variables of `function`, with this prepared body, that a nested function may use after an await."""
    captured = frozenset(function.__code__.co_cellvars)
    if not captured:
        return captured
    return captured & frozenset().union(*map(_mentioned, _lasting(body, names)))


def captured_by_classes(
    function: FunctionType, body: Iterable[ast.stmt], names: Names
) -> Iterator[tuple[ast.AST, list[str]]]:
    """Classes whose methods refer to variables of the agent: a fork shares classes, and so the variables."""
    captured = frozenset(function.__code__.co_cellvars)
    for node in _lasting(body, names):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in ast.walk(node) if isinstance(each, _CLOSURES) and each is not node]
            if found := captured & frozenset().union(*map(_mentioned, methods)):
                yield node, sorted(found)


def captured_turns(body: Iterable[ast.stmt], names: Names) -> Iterator[tuple[ast.AST, list[str]]]:
    """Nested functions that refer to the iteration variables of a comprehension that awaits.

    Each run of a comprehension has variables of its own; those of the loop that such a one becomes do not.
    """
    for closure in _lasting(body, names):
        turns = {
            name.removeprefix(_TURN).rpartition("_")[0]
            for name in _mentioned(closure)
            if name.startswith(_TURN)
        }
        if turns:
            yield closure, sorted(turns)


def _lasting(body: Iterable[ast.stmt], names: Names) -> Iterator[Closure]:
    """Nested functions that may be called after the next await."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, _CLOSURES):
            yield node
        at_once: list[ast.expr] = []
        if isinstance(node, ast.Call) and _is_done_at_once(node.func, names) and not has_await(node):
            at_once = [
                given
                for given in (*node.args, *(keyword.value for keyword in node.keywords))
                if isinstance(given, (ast.Lambda, ast.GeneratorExp)) and not _has_closure(given)
            ]
        todo += [child for child in _children(node) if child not in at_once]


def _is_done_at_once(function: ast.expr, names: Names) -> bool:
    match function:
        case ast.Attribute(value=ast.Constant(value=str()), attr="join"):
            return True
    called = names.resolve(function)
    return isinstance(called, (type, BuiltinFunctionType)) and called in _DONE_AT_ONCE


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword):
            yield child.value
        else:
            yield child


def _has_closure(closure: ast.Lambda | ast.GeneratorExp) -> bool:
    return any(node is not closure and isinstance(node, _CLOSURES) for node in ast.walk(closure))


def _mentioned(closure: Closure) -> set[str]:
    """All names in a nested function, its own included: a cell too many does no harm."""
    # What is evaluated where the function is defined is not captured.
    at_once = closure.generators[0].iter if isinstance(closure, ast.GeneratorExp) else closure
    evaluated = set(own_nodes(at_once))
    found: set[str] = set()
    for node in ast.walk(closure):
        if isinstance(node, ast.Name) and node not in evaluated:
            found.add(node.id)
        elif isinstance(node, ast.Nonlocal):
            found.update(node.names)
    return found
