"""Finds variables that hold only strings, numbers and answers of models, which have no finalizers."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

from hive_frontend.compiler.analysis.names import Names, is_own_operation
from hive_frontend.compiler.analysis.syntax import Suspend, own_nodes

_PLAIN_CALLS = frozenset({bool, float, int, len, repr, str})
_MODEL_CALLS = frozenset({"gen", "prefill", "decode"})


def plain_variables(function: ast.AsyncFunctionDef, body: Iterable[ast.stmt], names: Names) -> set[str]:
    """Return the plain variables of a function; `body` is its normal form."""
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
            return is_own_operation(called) and getattr(called, "__name__", "") in _MODEL_CALLS
    return False
