"""Which variables a state must carry: those that the code after its await may still read.

A backward analysis over the normal form, exact for assignments, branches and loops. Statements that it does
not take apart (try, with, match) count as reading everything they mention and assigning nothing, which is
safe: a state may carry a variable too many, never one too few.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from hive_frontend.compiler.syntax import Suspend, is_always_true, own_nodes, targets_of

Live = frozenset[str]
_NOTHING: Live = frozenset()


@dataclass(frozen=True)
class Liveness:
    """The result of the analysis for one function."""

    after: tuple[Live, ...]
    """Per suspension point: the variables that the code after it may read."""
    maybe_unbound: Live
    """Variables that may be without a value where they are live, as after an if without an else."""


def analyse(
    body: list[ast.stmt], points: int, variables: Iterable[str], parameters: Iterable[str]
) -> Liveness:
    """Liveness of a function in normal form.

    A variable that is live where the function begins is read on some path before any assignment. One that is
    not has been assigned on every path to wherever it is live, so long as nothing deletes it; hence
    `maybe_unbound` needs no analysis of its own.
    """
    analysis = _Analysis(frozenset(variables), points)
    at_start = analysis.block(body, _NOTHING, _NOTHING, _NOTHING)
    return Liveness(
        after=tuple(analysis.after),
        maybe_unbound=(at_start - frozenset(parameters)) | _deleted(body),
    )


class _Analysis:
    def __init__(self, variables: Live, points: int) -> None:
        self._variables = variables
        self.after: list[Live] = [_NOTHING] * points

    def block(self, body: list[ast.stmt], after: Live, on_break: Live, on_continue: Live) -> Live:
        """What is live before `body`, given what is live after it and where its jumps lead."""
        for statement in reversed(body):
            after = self._statement(statement, after, on_break, on_continue)
        return after

    def _statement(self, statement: ast.stmt, after: Live, on_break: Live, on_continue: Live) -> Live:
        match statement:
            case Suspend(call=call, targets=targets):
                after = (after - bound_names(*targets)) | self._read(*targets)
                self.after[statement.point] |= after
                return after | self._read(call)
            case ast.If(test=test, body=body, orelse=orelse):
                taken = self.block(body, after, on_break, on_continue)
                return self._read(test) | taken | self.block(orelse, after, on_break, on_continue)
            case ast.While(test=test, body=body, orelse=orelse):
                # The way out through the test does not exist in `while True`.
                leaving = self.block(orelse, after, on_break, on_continue)
                head = self._read(test) | (_NOTHING if is_always_true(test) else leaving)
                return self._loop(body, head, after, _NOTHING)
            case ast.For(target=target, iter=iterator, body=body, orelse=orelse):
                head = self.block(orelse, after, on_break, on_continue)
                # A for loop whose body suspends reads its iterator, a variable, again after each turn.
                head |= self._read(iterator) | self._read(target)
                return self._loop(body, head, after, bound_names(target))
            case ast.Return() | ast.Raise():
                return self._read(statement)
            case ast.Break():
                return on_break
            case ast.Continue():
                return on_continue
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                return (after - bound_names(*targets_of(statement))) | self._read(statement)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                return (after - {name}) | self._read(statement)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                return after - {(name.asname or name.name).split(".")[0] for name in names}
            case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Assert():
                return after | self._read(statement)
            case _:
                return after | on_break | on_continue | self._read(statement)

    def _loop(self, body: list[ast.stmt], head: Live, after: Live, bound: Live) -> Live:
        """The least fixed point of what is live at the head of a loop; sets only grow, so it is reached."""
        while True:
            again = head | (self.block(body, head, after, head) - bound)
            if again == head:
                return head
            head = again

    def _read(self, *nodes: ast.AST) -> Live:
        """Variables that the nodes mention other than to assign them, nested functions included."""
        names: set[str] = set()
        for root in nodes:
            for node in ast.walk(root):
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
                    names.add(node.id)
                elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    names.add(node.target.id)
                elif isinstance(node, ast.Nonlocal):
                    names.update(node.names)
        return self._variables & names


def bound_names(*targets: ast.expr) -> Live:
    """Variables that an assignment to the targets gives a value."""
    return frozenset(
        node.id
        for target in targets
        for node in own_nodes(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


def _deleted(body: list[ast.stmt]) -> Live:
    """Variables that lose their value somewhere: by `del`, or at the end of `except ... as`."""
    names: set[str] = set()
    for node in own_nodes(*body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            names.add(node.name)
    return frozenset(names)
