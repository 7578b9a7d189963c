"""Helpers for syntax trees, shared by the passes of the compiler."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeVar

from hive_frontend.compiler.running import hidden

Node = TypeVar("Node", bound=ast.AST)
Nested = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
Loop = (ast.For, ast.While)
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class OwnTransformer(ast.NodeTransformer):
    """Leaves nested functions and classes as they are."""

    def _skip(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _skip


class Suspend(ast.stmt):
    """An `await` or `yield` as a statement of its own: suspend with `value`, then assign the answer to the targets.

    The normal form has no other awaits. It is not a node of Python; emission replaces it by Python nodes.
    """

    _fields = ("value", "targets")
    _attributes = ("lineno", "col_offset", "end_lineno", "end_col_offset")

    value: ast.expr
    targets: list[ast.expr]
    point: int
    written: ast.AST
    """The user's original node."""

    def __init__(self, value: ast.expr, targets: list[ast.expr], point: int, written: ast.AST) -> None:
        super().__init__()
        self.value = value
        self.targets = targets
        self.point = point
        self.written = written
        ast.copy_location(self, written)


def own_nodes(*roots: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes that run as part of the function itself. Of nested functions and classes these are the
    decorators, defaults and base classes, not the bodies."""
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(_own_children(node))))


def _own_children(node: ast.AST) -> Iterable[ast.AST]:
    match node:
        case ast.Lambda(args=arguments):
            return defaults_of(arguments)
        case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
            return [*node.decorator_list, *defaults_of(arguments)]
        case ast.ClassDef():
            return [*node.decorator_list, *node.bases, *node.keywords]
        case _:
            return ast.iter_child_nodes(node)


def defaults_of(arguments: ast.arguments) -> list[ast.expr]:
    """Return the expressions of the defaults, which run where the function is defined."""
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


def has_await(*roots: ast.AST) -> bool:
    """Whether running the nodes awaits or yields."""
    return any(map(awaits, own_nodes(*roots)))


def awaits(node: ast.AST) -> bool:
    """Whether the node itself, not one inside it, awaits or yields."""
    return isinstance(node, (ast.Await, ast.Yield, ast.AsyncFor, ast.AsyncWith, Suspend)) or (
        isinstance(node, ast.comprehension) and bool(node.is_async)
    )


def awaits_per_iteration(node: Comprehension) -> bool:
    """Whether a comprehension awaits outside of its first iterable, which is evaluated only once."""
    first, *later = node.generators
    parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    return bool(first.is_async) or has_await(*parts, *first.ifs, *later)


def at(origin: ast.AST, node: Node) -> Node:
    """Return `node` with the source position of `origin`, so that tracebacks show the user's line.

    Children that already have a position keep it.
    """
    ast.copy_location(node, origin)
    todo: list[ast.AST] = [node]
    while todo:
        for child in ast.iter_child_nodes(todo.pop()):
            if not hasattr(child, "lineno"):
                ast.copy_location(child, origin)
                todo.append(child)
    return node


def load(name: str) -> ast.Name:
    """Return an expression that reads a variable."""
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.Name:
    """Return a variable as an assignment target."""
    return ast.Name(name, ast.Store())


def call(function: str, *arguments: ast.expr) -> ast.Call:
    """Return a call of a function by its name."""
    return ast.Call(load(function), list(arguments), [])


def delete_name(name: str) -> list[ast.stmt]:
    """Return the statements by which Python deletes the name of an exception at the end of its handler."""
    return [ast.Assign([store(name)], ast.Constant(None)), ast.Delete([ast.Name(name, ast.Del())])]


def targets_of(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    """Return the targets of an assignment."""
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def bound_names(*targets: ast.AST) -> frozenset[str]:
    """Return the variables that an assignment to the targets, or a match of the patterns, binds."""
    names: set[str] = set()
    for node in own_nodes(*targets):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.MatchMapping(rest=str(name)):
                names.add(name)
    return frozenset(names)


def is_always_true(test: ast.expr) -> bool:
    """Whether the test of a loop is a true constant, such as `True`."""
    return isinstance(test, ast.Constant) and bool(test.value)


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a compound statement."""
    for _, value in ast.iter_fields(statement):
        for item in value if isinstance(value, list) else ():
            if isinstance(item, (ast.ExceptHandler, ast.match_case)):
                yield item.body
            elif isinstance(item, ast.stmt):
                yield value
                break


def guarded_points(body: list[ast.stmt], guarded: bool = False) -> Iterator[int]:
    """Yield the suspension points of a normal form that are inside a `try` with a `finally`."""
    for statement in body:
        if isinstance(statement, Suspend) and guarded:
            yield statement.point
        final = getattr(statement, "finalbody", [])
        for block in blocks_of(statement):
            yield from guarded_points(block, guarded or (bool(final) and block is not final))


FALL, BREAK, CONTINUE, LEAVE = "fall", "break", "continue", "leave"


def exits(body: list[ast.stmt]) -> set[str]:
    """Return how control can leave a block, other than by a suspension or an exception: past its end, by `break` or
    `continue` of the enclosing loop, or by `return`. The result may contain exits that never happen."""
    found: set[str] = set()
    for statement in body:
        leaving = _statement_exits(statement)
        found |= leaving - {FALL}
        if FALL not in leaving:
            return found
    return found | {FALL}


def _statement_exits(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.Return():
            return set() if _is_suspension(statement) else {LEAVE}
        case ast.Raise() | Suspend():
            return set()
        case ast.Break():
            return {BREAK}
        case ast.Continue():
            return {CONTINUE}
        case ast.If(body=body, orelse=orelse):
            return exits(body) | exits(orelse)
        case ast.While(test=test, body=body, orelse=orelse):
            inside = exits(body)
            after = set() if is_always_true(test) else exits(orelse)
            return after | ({FALL} if BREAK in inside else set()) | inside & {LEAVE}
        case ast.For(body=body, orelse=orelse) | ast.AsyncFor(body=body, orelse=orelse):
            inside = exits(body)
            ends = not is_once(statement) or inside & {FALL, CONTINUE}
            after = exits(orelse) if ends else set()
            return after | ({FALL} if BREAK in inside else set()) | inside & {LEAVE}
        case ast.Try() | ast.TryStar():
            leaving = exits(statement.body)
            if FALL in leaving:
                leaving = leaving - {FALL} | exits(statement.orelse)
            leaving = leaving.union(*(exits(handler.body) for handler in statement.handlers))
            last = exits(statement.finalbody)
            return leaving | (last - {FALL}) if FALL in last else last
        case ast.With(body=body) | ast.AsyncWith(body=body):
            # A context manager may suppress an exception from its block.
            return exits(body) | {FALL}
        case ast.Match(cases=cases):
            return {FALL}.union(*(exits(case.body) for case in cases))
        case _:
            return {FALL}


def _is_suspension(node: ast.Return) -> bool:
    """Whether an emitted `return` is a suspension."""
    match node.value:
        case ast.Call(func=ast.Name(id=hidden.SUSPEND)) | ast.NamedExpr(target=ast.Name(id=hidden.LEFT)):
            return True
        case ast.Name(id=hidden.LEFT):
            return True
        case _:
            return False


def once(body: list[ast.stmt], orelse: list[ast.stmt], origin: ast.stmt) -> ast.For:
    """Return a loop of one iteration, which runs the rest of an interrupted iteration: `continue` in `body` leads to
    `orelse`, `break` skips it."""
    single = ast.Tuple([ast.Constant(None)], ast.Load())
    return at(origin, ast.For(store(hidden.ONCE), single, body or [ast.Pass()], orelse))


def is_once(loop: ast.stmt) -> bool:
    """Whether the statement was made by `once`."""
    return isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) and loop.target.id == hidden.ONCE
