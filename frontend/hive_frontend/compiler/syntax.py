"""Questions about syntax trees that several passes of the compiler ask."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

HIDDEN = "_hive_"
"""Prefix of all names that the compiler brings into a function."""

Nested = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
Loop = (ast.For, ast.While)


class Suspend(ast.stmt):
    """An `await` as a statement of its own: make the call, then bind the answer to the targets.

    The normal form has no other awaits. Not a node of Python: emission turns it into some.
    """

    _fields = ("call", "targets")
    _attributes = ("lineno", "col_offset", "end_lineno", "end_col_offset")

    call: ast.expr
    targets: list[ast.expr]
    point: int

    def __init__(self, call: ast.expr, targets: list[ast.expr], point: int) -> None:
        super().__init__()
        self.call = call
        self.targets = targets
        self.point = point
        ast.copy_location(self, call)


def own_nodes(*roots: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run as part of the function itself: nested functions and classes count for their
    decorators and defaults, not for their bodies."""
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(_own_children(node))))


def _own_children(node: ast.AST) -> Iterable[ast.AST]:
    match node:
        case ast.Lambda(args=arguments):
            return _defaults(arguments)
        case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
            return [*node.decorator_list, *_defaults(arguments)]
        case ast.ClassDef():
            return [*node.decorator_list, *node.bases, *node.keywords]
        case _:
            return ast.iter_child_nodes(node)


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


def has_await(*roots: ast.AST) -> bool:
    """Whether running the nodes awaits something."""
    return any(
        isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith, Suspend))
        or (isinstance(node, ast.comprehension) and bool(node.is_async))
        for node in own_nodes(*roots)
    )


def targets_of(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    """What an assignment assigns to."""
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def is_always_true(test: ast.expr) -> bool:
    """Whether the test of a loop is a constant such as `True`."""
    return isinstance(test, ast.Constant) and bool(test.value)


def breaks_of(body: list[ast.stmt]) -> Iterator[ast.Break | ast.Continue]:
    """The `break` and `continue` statements in the body of a loop that belong to that loop."""
    for statement in body:
        if isinstance(statement, (ast.Break, ast.Continue)):
            yield statement
        elif isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            yield from breaks_of(statement.orelse)
        elif not isinstance(statement, Nested):
            for block in _blocks(statement):
                yield from breaks_of(block)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for _, value in ast.iter_fields(statement):
        for item in value if isinstance(value, list) else ():
            if isinstance(item, (ast.ExceptHandler, ast.match_case)):
                yield item.body
            elif isinstance(item, ast.stmt):
                yield value
                break


FALL, BREAK, CONTINUE = "fall", "break", "continue"


def exits(body: list[ast.stmt]) -> set[str]:
    """How control can leave a block other than by ending the function's run: past its end, or by a `break`
    or `continue` of the loop around it. Errs on the side of more exits."""
    found: set[str] = set()
    for statement in body:
        ways = _statement_exits(statement)
        found |= ways - {FALL}
        if FALL not in ways:
            return found
    return found | {FALL}


def _statement_exits(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.Return() | ast.Raise() | Suspend():
            return set()
        case ast.Break():
            return {BREAK}
        case ast.Continue():
            return {CONTINUE}
        case ast.If(body=body, orelse=orelse):
            return exits(body) | exits(orelse)
        case ast.While(test=test, body=body, orelse=orelse):
            after = set() if is_always_true(test) else exits(orelse)
            return after | ({FALL} if BREAK in exits(body) else set())
        case ast.For(body=body, orelse=orelse):
            inside = exits(body)
            ends = not is_once(statement) or inside & {FALL, CONTINUE}
            return (exits(orelse) if ends else set()) | ({FALL} if BREAK in inside else set())
        case _:
            jumps = {BREAK if isinstance(jump, ast.Break) else CONTINUE for jump in breaks_of([statement])}
            return jumps | {FALL}


ONCE = f"{HIDDEN}once"


def once(body: list[ast.stmt], orelse: list[ast.stmt], at: ast.stmt) -> ast.For:
    """A loop of one turn, for the rest of an interrupted turn of a loop: `continue` in `body` leads to
    `orelse`, and `break` past it."""
    loop = ast.For(
        target=ast.Name(ONCE, ast.Store()),
        iter=ast.Tuple([ast.Constant(None)], ast.Load()),
        body=body or [ast.Pass()],
        orelse=orelse,
    )
    return ast.fix_missing_locations(ast.copy_location(loop, at))


def is_once(loop: ast.For) -> bool:
    """Whether the loop was made by `once`."""
    return isinstance(loop.target, ast.Name) and loop.target.id == ONCE
