"""Prepares a copy of a function's body so that its code can move into other functions.

The code of an agent is split into segments, which are other functions. There, `return` means something else, `super()`
would not find its arguments, and `__private` names would not be mangled. This pass makes all three explicit.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Set

from hive_frontend.compiler.analysis.syntax import OwnTransformer, at, call, load
from hive_frontend.compiler.running.hidden import RETURN


def prepare(node: ast.AsyncFunctionDef, class_name: str | None) -> list[ast.stmt]:
    """Return the prepared body of the function `node`. `class_name` is the class that defines it, if any."""
    body = copy.deepcopy(node.body)
    parameters = [*node.args.posonlyargs, *node.args.args]
    if class_name is not None:
        body = _transform(_Mangled(class_name), body)
    return _transform(_Explicit(parameters[0].arg if parameters else None), body)


def _transform(transformer: ast.NodeTransformer, body: Iterable[ast.stmt]) -> list[ast.stmt]:
    return [transformer.visit(statement) for statement in body]


class _Explicit(OwnTransformer):
    def __init__(self, first_parameter: str | None) -> None:
        self._first = first_parameter

    def visit_Return(self, node: ast.Return) -> ast.Return:
        self.generic_visit(node)
        return final_return(node, node.value)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="super"), args=[], keywords=[]) if self._first is not None:
                node.args = [at(node, load("__class__")), at(node, load(self._first))]
        return node


class _Mangled(ast.NodeTransformer):
    """Mangles private names of variables. Python's compiler mangles those of attributes, because the emitted code is
    compiled inside a class of the same name."""

    def __init__(self, class_name: str) -> None:
        self._prefix = f"_{class_name.lstrip('_')}"

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id.startswith("__") and not node.id.endswith("__"):
            node.id = self._prefix + node.id
        return node


def without_annotations(body: Iterable[ast.stmt], variables: Set[str]) -> list[ast.stmt]:
    """Return `body` with plain instead of annotated assignments to these variables: Python allows no annotation of a
    nonlocal variable."""
    return _transform(_Unannotated(variables), body)


class _Unannotated(OwnTransformer):
    def __init__(self, variables: Set[str]) -> None:
        self._variables = variables

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name) or node.target.id not in self._variables:
            return node
        if node.value is None:
            return at(node, ast.Pass())
        return at(node, ast.Assign([node.target], node.value))


def final_return(origin: ast.AST, value: ast.expr | None) -> ast.Return:
    """Return the emitted form of a `return` of the agent, which differs from the returns of suspensions."""
    argument = ast.Constant(None) if value is None else value
    return at(origin, ast.Return(call(RETURN, argument)))
