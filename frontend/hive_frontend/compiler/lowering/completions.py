"""Records how control left a `try` whose `finally` awaits.

Python remembers this internally, but not across the segments into which such a `finally` is split. A variable stores it
instead: None for the end of the block, an exception, the outcome of a `return`, or "break" or "continue".
"""

from __future__ import annotations

import ast
from typing import TypeVar

from hive_frontend.compiler.analysis.syntax import OwnTransformer, at, call, load, store
from hive_frontend.compiler.running import hidden

Jump = ast.Return | ast.Break | ast.Continue
_Loop = TypeVar("_Loop", ast.For, ast.While)

_WORDS: dict[type[ast.stmt], str] = {ast.Break: "break", ast.Continue: "continue"}


def record_jumps(body: list[ast.stmt], done: str) -> tuple[list[ast.stmt], list[type[Jump]]]:
    """Return `body` with an assignment to `done` before every jump out of it, and the kinds of these jumps."""
    recorder = _Recorder(done)
    return recorder.block(body), sorted(recorder.jumps, key=lambda jump: jump.__name__)


def dispatch(origin: ast.AST, done: str, jumps: list[type[Jump]]) -> list[ast.stmt]:
    """Return the statements after a `finally` that continue the jump that it interrupted."""
    statements: list[ast.stmt] = []
    for jump in jumps:
        if jump is ast.Return:
            test = ast.Compare(call(hidden.TYPE, load(done)), [ast.Is()], [load(hidden.RETURNED)])
            statements.append(ast.If(test, [ast.Return(load(done))], []))
        else:
            test = ast.Compare(load(done), [ast.Eq()], [ast.Constant(_WORDS[jump])])
            statements.append(ast.If(test, [jump()], []))
    return [at(origin, statement) for statement in statements]


class _Recorder(OwnTransformer):
    def __init__(self, done: str) -> None:
        self._done = done
        self._loops = 0
        self.jumps: set[type[Jump]] = set()

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for statement in body:
            made = self.visit(statement)
            new.extend(made if isinstance(made, list) else [made])
        return new

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        assert node.value is not None  # `prepare` gives every return a value.
        return self._record(node, node.value, ast.Return(load(self._done)))

    def visit_Break(self, node: ast.Break) -> ast.stmt | list[ast.stmt]:
        return node if self._loops else self._record(node, ast.Constant("break"), node)

    def visit_Continue(self, node: ast.Continue) -> ast.stmt | list[ast.stmt]:
        return node if self._loops else self._record(node, ast.Constant("continue"), node)

    def _record(self, origin: Jump, value: ast.expr, jump: Jump) -> list[ast.stmt]:
        self.jumps.add(type(origin))
        return [at(origin, ast.Assign([store(self._done)], value)), at(origin, jump)]

    def _loop(self, node: _Loop) -> _Loop:
        self._loops += 1
        node.body = self.block(node.body)
        self._loops -= 1
        node.orelse = self.block(node.orelse)
        return node

    visit_For = visit_While = _loop
