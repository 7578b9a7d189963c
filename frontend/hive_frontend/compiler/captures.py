"""Finds nested functions that would outlive the variables they refer to.

A nested function refers to variables of the frame that it was made in. After an await the agent's variables
live in another frame, so the function would see old values, and all branches of a search would share them.
Nested functions are therefore fine between two awaits and an error across one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hive_frontend.compiler.hidden import BIND, ITER
from hive_frontend.compiler.liveness import Live, Liveness
from hive_frontend.compiler.syntax import bound_names, own_nodes, targets_of

Closure = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.GeneratorExp

# Their results call or iterate their arguments later. Other calls, such as `sorted(found, key=lambda ...)`,
# are taken to be done with their arguments when they return.
_LAZY = frozenset({"map", "filter", "enumerate", "zip", "reversed", "iter", ITER, BIND})


@dataclass(frozen=True)
class Capture:
    """A nested function that a state would carry although it refers to variables of the agent."""

    node: Closure
    carrier: str
    """The variable that holds it."""
    variables: tuple[str, ...]


def escaping_captures(body: list[ast.stmt], liveness: Liveness, variables: Iterable[str]) -> list[Capture]:
    """All such functions in a function in normal form with these variables."""
    carried: Live = frozenset().union(*liveness.after)
    own = frozenset(variables)
    return [
        Capture(closure, min(holders), tuple(sorted(captured)))
        for node in own_nodes(*body)
        if (holders := _holders(node) & carried)
        for closure in _closures(node)
        if (captured := _captured(closure) & own)
    ]


def _holders(node: ast.AST) -> Live:
    """Variables that a statement stores something into."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return frozenset({name})
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            targets = targets_of(node)
            inner = [t.value for t in targets if isinstance(t, (ast.Subscript, ast.Attribute))]
            owners = {n.id for owner in inner for n in own_nodes(owner) if isinstance(n, ast.Name)}
            return bound_names(*targets) | owners
        case _:
            return frozenset()


def _closures(node: ast.AST) -> Iterator[Closure]:
    """Nested functions in what a statement stores."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node
    elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
        yield from _kept(node.value)


def _kept(value: ast.expr) -> Iterator[Closure]:
    if isinstance(value, (ast.Lambda, ast.GeneratorExp)):
        yield value
    elif not isinstance(value, ast.Call) or (isinstance(value.func, ast.Name) and value.func.id in _LAZY):
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield from _kept(child)


def _captured(closure: Closure) -> Live:
    """Names that the body of a nested function takes from around it."""
    # What is evaluated at once, where the function is defined, is not captured.
    at_once = closure.generators[0].iter if isinstance(closure, ast.GeneratorExp) else closure
    evaluated = set(ast.walk(at_once) if isinstance(closure, ast.GeneratorExp) else own_nodes(at_once))
    loaded: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(closure):
        if node in evaluated:
            continue
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    return frozenset(loaded - bound)
