"""Finds the variables that are annotated as shared between branches."""

from __future__ import annotations

import ast

from hive_frontend.compiler.analysis.names import Names
from hive_frontend.compiler.analysis.syntax import own_nodes


def shared_names(function: ast.AsyncFunctionDef, names: Names) -> frozenset[str]:
    """Return parameters and variables annotated with `Shared[...]`, also as a string or through a module."""
    from hive_frontend.operations.fork import (
        Shared,  # Not above: forking is the runtime's, which imports the compiler.
    )

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
