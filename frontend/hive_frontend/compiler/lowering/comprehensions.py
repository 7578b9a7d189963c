"""Turns comprehensions that await in every iteration into loops.

    [f(x) for x in xs if await ok(x)]

becomes the following. The compiler renames `x`, because the variables of a comprehension are local to it.

    made = []
    for x_1 in xs:
        if await ok(x_1):
            made += [f(x_1)]
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping

from hive_frontend.compiler.analysis.syntax import Comprehension, at, bound_names, store


def as_loops(
    node: Comprehension, iterable: ast.expr, made: str, rename: Callable[[str], str]
) -> list[ast.stmt]:
    """Return statements that store the value of the comprehension in the variable `made`.

    `iterable` replaces its first iterable, which is already evaluated; `rename` returns new names for its
    variables.
    """
    node = copy.deepcopy(node)
    variables = sorted(bound_names(*(generator.target for generator in node.generators)))
    renamed = _Renamed({name: rename(name) for name in variables})
    op: ast.operator = ast.BitOr()
    display: ast.expr
    match node:
        case ast.ListComp():
            op, display = ast.Add(), ast.List([node.elt], ast.Load())
        case ast.SetComp():
            display = ast.Set([node.elt])
        case ast.DictComp():
            display = ast.Dict([node.key], [node.value])
        case ast.GeneratorExp():
            raise AssertionError("the checker refuses generator expressions that await")
    element = node.key if isinstance(node, ast.DictComp) else node.elt
    body: ast.stmt = at(element, ast.AugAssign(store(made), op, renamed.visit(display)))
    for generator in reversed(node.generators):
        for condition in reversed(generator.ifs):
            body = at(condition, ast.If(renamed.visit(condition), [body], []))
        items = iterable if generator is node.generators[0] else renamed.visit(generator.iter)
        body = at(generator.target, ast.For(renamed.visit(generator.target), items, [body], []))
    empty: ast.expr = ast.Dict([], [])
    if isinstance(node, ast.ListComp):
        empty = ast.List([], ast.Load())
    elif isinstance(node, ast.SetComp):
        # `{*()}`, because the name `set` may be rebound.
        empty = ast.Set([ast.Starred(ast.Tuple([], ast.Load()), ast.Load())])
    return [at(node, ast.Assign([store(made)], empty)), body]


class _Renamed(ast.NodeTransformer):
    """Renames variables, except where a nested scope has its own variable of the same name."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        arguments = node.args
        arguments.defaults = [self.visit(default) for default in arguments.defaults]
        arguments.kw_defaults = [default and self.visit(default) for default in arguments.kw_defaults]
        own = {argument.arg for argument in ast.walk(arguments) if isinstance(argument, ast.arg)}
        node.body = self._without(own).visit(node.body)
        return node

    def _comprehension(self, node: Comprehension) -> Comprehension:
        inner = self._without(bound_names(*(generator.target for generator in node.generators)))
        first = node.generators[0]
        first.iter = self.visit(first.iter)
        for generator in node.generators:
            generator.ifs = [inner.visit(condition) for condition in generator.ifs]
            if generator is not first:
                generator.iter = inner.visit(generator.iter)
        if isinstance(node, ast.DictComp):
            node.key, node.value = inner.visit(node.key), inner.visit(node.value)
        else:
            node.elt = inner.visit(node.elt)
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _without(self, names: set[str] | frozenset[str]) -> _Renamed:
        return _Renamed({old: new for old, new in self._names.items() if old not in names})
