"""Finds the variables that are plain, and those that branches share."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

from hive_frontend.compiler.analysis.names import MODEL_CALLS, Names, is_own_operation
from hive_frontend.compiler.analysis.syntax import Suspend, own_nodes
from hive_frontend.operations.fork import Shared

_PLAIN_CALLS = frozenset({bool, float, int, len, repr, str})


def plain_variables(function: ast.AsyncFunctionDef, body: Iterable[ast.stmt], names: Names) -> set[str]:
    """Return the variables of a function that hold only strings, numbers and answers of models, which have no
    finalizers; `body` is its normal form."""
    bindings: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            bindings[argument.arg] += 1
            match argument.annotation:
                case ast.Name(id="str" | "int" | "float" | "bool"):
                    plain[argument.arg] += 1
    for node in own_nodes(*body):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                bindings[name] += 1
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_plain(value, names):
                plain[name] += 1
            case Suspend(targets=[ast.Name(id=name)]) if _is_model_call(node.written, names):
                plain[name] += 1
    return {name for name, count in plain.items() if count == bindings[name]}


def _is_plain(value: ast.expr, names: Names) -> bool:
    match value:
        case ast.Constant() | ast.JoinedStr() | ast.Compare():
            return True
        case ast.Call(func=function):
            called = names.resolve(function)
            return callable(called) and called in _PLAIN_CALLS
    return False


def _is_model_call(written: ast.AST, names: Names) -> bool:
    match written:
        case ast.Await(value=ast.Call(func=function)):
            called = names.resolve(function)
            return is_own_operation(called) and getattr(called, "__name__", "") in MODEL_CALLS
    return False


def shared_names(function: ast.AsyncFunctionDef, names: Names) -> frozenset[str]:
    """Return parameters and variables annotated with `Shared[...]`, also as a string or through a module."""

    def is_shared(annotation: ast.expr | None) -> bool:
        match annotation:
            case ast.Constant(value=str(text)):
                try:
                    return is_shared(ast.parse(text.strip(), mode="eval").body)
                except SyntaxError:
                    return False
            case ast.Subscript(value=base):
                return names.resolve(base) is Shared
            case _:
                return False

    found: set[str] = set()
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg) and is_shared(argument.annotation):
            found.add(argument.arg)
    for node in own_nodes(*function.body):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if is_shared(annotation):
                found.add(name)
    return frozenset(found)
