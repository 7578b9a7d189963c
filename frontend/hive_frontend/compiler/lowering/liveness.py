"""Liveness analysis: the variables that a state must carry, because the code after its await may read them.

This is a backward analysis over the normal form. Where it is not exact (for example for `except*`), it assumes that a
statement reads everything it mentions and assigns nothing. This is safe: a state may carry too many variables, but
never too few.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from hive_frontend.compiler.analysis.syntax import Suspend, bound_names, is_always_true, own_nodes, targets_of
from hive_frontend.compiler.lowering.normal_form import NormalForm
from hive_frontend.compiler.running import hidden

Live = frozenset[str]
_NOTHING: Live = frozenset()


@dataclass(frozen=True)
class Liveness:
    """Liveness of the variables of one function."""

    after: tuple[Live, ...]
    """Per suspension point: the variables that the code after it may read."""
    maybe_unbound: Live
    """Variables that may be unbound where they are live, for example after an `if` without an `else`."""


def analyse(
    form: NormalForm,
    variables: Iterable[str],
    parameters: Iterable[str],
    cells: Live = _NOTHING,
    always: Live = _NOTHING,
) -> Liveness:
    """Return the liveness of a function in normal form.

    For variables in `cells`, the cell counts: every mention of the variable needs it. Every state carries the variables
    in `always`.

    `maybe_unbound` needs no separate analysis. A variable that is live at the start of the function is read on some
    path before any assignment. Any other variable is assigned on every path to each point where it is live, unless it
    is deleted.
    """
    analysis = _Analysis(form, frozenset(variables), cells)
    at_start = analysis.block(form.body, _Successors())
    return Liveness(
        after=tuple(live | always for live in analysis.after),
        maybe_unbound=((at_start - frozenset(parameters)) | _deleted(form.body)) - cells,
    )


@dataclass(frozen=True, slots=True)
class _Successors:
    """The live variables at each place to which control can go from a statement."""

    on: Live = _NOTHING
    """At the next statement."""
    on_break: Live = _NOTHING
    on_continue: Live = _NOTHING
    on_return: Live = _NOTHING
    on_raise: Live = _NOTHING
    held: Live = _NOTHING
    """Variables that a suspension must carry for the `except` and `finally` clauses that it is in."""

    def elsewhere(self) -> Live:
        """Return the live variables at the targets of all jumps."""
        return self.on_break | self.on_continue | self.on_return | self.on_raise


class _Analysis:
    def __init__(self, form: NormalForm, variables: Live, cells: Live) -> None:
        self._form = form
        self._variables = variables
        self._cells = cells
        self.after: list[Live] = [_NOTHING] * len(form.suspensions)

    def block(self, body: list[ast.stmt], successors: _Successors) -> Live:
        """Return the live variables before `body`."""
        live = successors.on
        for statement in reversed(body):
            live = self._statement(statement, replace(successors, on=live))
            if not _is_safe(statement):
                # It may raise anywhere inside.
                live |= successors.on_raise
        return live

    def _statement(self, statement: ast.stmt, successors: _Successors) -> Live:
        after = successors.on
        match statement:
            case Suspend(value=value, targets=targets):
                after = (
                    (after - self._bound(*targets))
                    | self._read(*targets)
                    | successors.held
                    | successors.on_raise
                )
                self.after[statement.point] |= after
                return after | self._read(value)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._read(test) | self.block(body, successors) | self.block(orelse, successors)
            case ast.While(test=test, body=body, orelse=orelse):
                # `while True` cannot end through its test.
                leaving = self.block(orelse, successors)
                head = self._read(test) | (_NOTHING if is_always_true(test) else leaving)
                return self._loop(body, head, successors, _NOTHING)
            case ast.For(target=target, iter=iterator, body=body, orelse=orelse):
                # A for loop whose body suspends reads its iterator variable again in each iteration.
                head = self.block(orelse, successors) | self._read(iterator) | self._read(target)
                return self._loop(body, head, successors, self._bound(target))
            case ast.Try():
                return self._try(statement, successors)
            case ast.With(items=items, body=body):
                # The managers may suppress an exception from anywhere in the block.
                inside = self.block(body, replace(successors, on_raise=successors.on_raise | after))
                targets = [item.optional_vars for item in items if item.optional_vars is not None]
                return after | (inside - self._bound(*targets)) | self._read(*items)
            case ast.Match(subject=subject, cases=cases):
                return after.union(
                    self._read(subject),
                    *(self._case(case, self.block(case.body, successors)) for case in cases),
                )
            case ast.Return():
                return successors.on_return | self._read(statement)
            case ast.Raise():
                return self._read(statement)
            case ast.Break():
                return successors.on_break
            case ast.Continue():
                return successors.on_continue
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                return (after - self._bound(*targets_of(statement))) | self._read(statement)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                return self._renewed(after, {name}) | self._read(statement)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                return self._renewed(after, {(name.asname or name.name).split(".")[0] for name in names})
            case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Assert():
                return after | self._read(statement)
            case _:
                return after | successors.elsewhere() | self._read(statement)

    def _loop(self, body: list[ast.stmt], head: Live, successors: _Successors, bound: Live) -> Live:
        """Return the live variables at the head of a loop: the least fixed point, found by iteration."""
        while True:
            iteration = replace(successors, on=head, on_break=successors.on, on_continue=head)
            again = head | (self.block(body, iteration) - bound)
            if again == head:
                return head
            head = again

    def _try(self, statement: ast.Try, successors: _Successors) -> Live:
        if statement.finalbody:
            done = self._form.completions.get(statement)
            held = successors.held if done is None else successors.held | {done}
            # Control leaves through the `finally` in any case.
            final = self.block(
                statement.finalbody, replace(successors, on=successors.on | successors.elsewhere(), held=held)
            )
            successors = _Successors(final, final, final, final, final, successors.held)
        catches_all = any(handler.type is None for handler in statement.handlers)
        caught = _NOTHING if catches_all else successors.on_raise
        for handler in statement.handlers:
            variable = self._form.caught.get(handler)
            held = successors.held if variable is None else successors.held | {variable}
            body = self.block(handler.body, replace(successors, held=held))
            caught |= body if handler.name is None else self._renewed(body, {handler.name})
            caught |= _NOTHING if handler.type is None else self._read(handler.type)
        orelse = self.block(statement.orelse, successors)
        return self.block(statement.body, replace(successors, on=orelse, on_raise=caught))

    def _case(self, case: ast.match_case, body: Live) -> Live:
        guard = _NOTHING if case.guard is None else self._read(case.guard)
        return self._renewed(body | guard, bound_names(case.pattern)) | self._read(case.pattern)

    def _bound(self, *targets: ast.AST) -> Live:
        """Return the variables that are not live before an assignment to the targets."""
        return bound_names(*targets) - self._cells

    def _renewed(self, after: Live, names: Set[str]) -> Live:
        """Return the live variables before a statement that binds the names."""
        return (after - names) | (self._cells & names)

    def _read(self, *nodes: ast.AST) -> Live:
        """Return the variables that the nodes mention other than as targets, including nested functions; for cells,
        every mention counts."""
        names: set[str] = set()
        for root in nodes:
            for node in ast.walk(root):
                if isinstance(node, ast.Name) and (
                    node.id in self._cells or not isinstance(node.ctx, ast.Store)
                ):
                    names.add(node.id)
                elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    names.add(node.target.id)
                elif isinstance(node, ast.Nonlocal):
                    names.update(node.names)
                elif isinstance(node, (ast.MatchAs, ast.MatchStar, ast.ExceptHandler)) and node.name:
                    names.update(self._cells & {node.name})
                elif isinstance(node, ast.MatchMapping) and node.rest:
                    names.update(self._cells & {node.rest})
        return self._variables & names


def _is_safe(statement: ast.stmt) -> bool:
    """Whether the statement was made by the compiler and cannot raise."""
    match statement:
        case ast.Assign(targets=[ast.Name()], value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name()], value=ast.Call(func=ast.Name(id=hidden.HANDLED))):
            return True
        case ast.Return(value=ast.Name(id=name)):
            return name.startswith(hidden.HIDDEN)
        case _:
            return False


def _deleted(body: list[ast.stmt]) -> Live:
    """Return the variables that become unbound somewhere: by `del`, or at the end of `except ... as`."""
    names: set[str] = set()
    for node in own_nodes(*body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            names.add(node.name)
    return frozenset(names)
