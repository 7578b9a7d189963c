"""How a `try` with a `finally` that awaits was left, as data.

A `finally` that is cut in two loses what Python itself remembers about the way into it. A variable tells
instead: None at the end of the block, an exception, the outcome of a `return`, or the word for a jump.
"""

from __future__ import annotations

import ast
from typing import TypeVar

from hive_frontend.compiler.analysis.syntax import at, call, load, store
from hive_frontend.compiler.running import hidden

Jump = ast.Return | ast.Break | ast.Continue
_Loop = TypeVar("_Loop", ast.For, ast.While)

_WORDS: dict[type[ast.stmt], str] = {ast.Break: "break", ast.Continue: "continue"}


def record_jumps(body: list[ast.stmt], done: str) -> tuple[list[ast.stmt], list[type[Jump]]]:
    """`body`, with every jump out of it preceded by an assignment to `done`; and the kinds of jumps."""
    recorder = _Recorder(done)
    return recorder.block(body), sorted(recorder.jumps, key=lambda jump: jump.__name__)


def dispatch(origin: ast.AST, done: str, jumps: list[type[Jump]]) -> list[ast.stmt]:
    """The statements after a `finally` that take up again the jump that it interrupted."""
    statements: list[ast.stmt] = []
    for jump in jumps:
        if jump is ast.Return:
            test = ast.Compare(call(hidden.TYPE, load(done)), [ast.Is()], [load(hidden.RETURNED)])
            statements.append(ast.If(test, [ast.Return(load(done))], []))
        else:
            test = ast.Compare(load(done), [ast.Eq()], [ast.Constant(_WORDS[jump])])
            statements.append(ast.If(test, [jump()], []))
    return [at(origin, statement) for statement in statements]


class _Recorder(ast.NodeTransformer):
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
        assert node.value is not None  # Prepared functions return outcomes.
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

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave
