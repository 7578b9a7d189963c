"""Which variables a state must carry: those that the code after its await may still read.

A backward analysis over the normal form. Where it is not exact (`except*`, say), statements count as reading
everything they mention and assigning nothing, which is safe: a state may carry a variable too many, never one
too few.
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
    """The result of the analysis for one function."""

    after: tuple[Live, ...]
    """Per suspension point: the variables that the code after it may read."""
    maybe_unbound: Live
    """Variables that may be without a value where they are live, as after an if without an else."""


def analyse(
    form: NormalForm,
    variables: Iterable[str],
    parameters: Iterable[str],
    cells: Live = _NOTHING,
    always: Live = _NOTHING,
) -> Liveness:
    """Liveness of a function in normal form.

    Of variables that live in `cells` the cell itself counts: whatever mentions the variable needs it. Those
    among `always` are carried in any case.

    A variable that is live where the function begins is read on some path before any assignment. One that is
    not has been assigned on every path to wherever it is live, so long as nothing deletes it; hence
    `maybe_unbound` needs no analysis of its own.
    """
    analysis = _Analysis(form, frozenset(variables), cells)
    at_start = analysis.block(form.body, _Ways())
    return Liveness(
        after=tuple(live | always for live in analysis.after),
        maybe_unbound=((at_start - frozenset(parameters)) | _deleted(form.body)) - cells,
    )


@dataclass(frozen=True, slots=True)
class _Ways:
    """What is live where control can go from a statement."""

    on: Live = _NOTHING
    """After it."""
    on_break: Live = _NOTHING
    on_continue: Live = _NOTHING
    on_return: Live = _NOTHING
    on_raise: Live = _NOTHING
    held: Live = _NOTHING
    """What a suspension has to carry because of the `except` and `finally` clauses that it is in."""

    def elsewhere(self) -> Live:
        """After all jumps."""
        return self.on_break | self.on_continue | self.on_return | self.on_raise


class _Analysis:
    def __init__(self, form: NormalForm, variables: Live, cells: Live) -> None:
        self._form = form
        self._variables = variables
        self._cells = cells
        self.after: list[Live] = [_NOTHING] * len(form.suspensions)

    def block(self, body: list[ast.stmt], ways: _Ways) -> Live:
        """What is live before `body`."""
        live = ways.on
        for statement in reversed(body):
            live = self._statement(statement, replace(ways, on=live))
            if not _is_safe(statement):
                # It may raise, at any point in it.
                live |= ways.on_raise
        return live

    def _statement(self, statement: ast.stmt, ways: _Ways) -> Live:
        after = ways.on
        match statement:
            case Suspend(value=value, targets=targets):
                after = (after - self._bound(*targets)) | self._read(*targets) | ways.held | ways.on_raise
                self.after[statement.point] |= after
                return after | self._read(value)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._read(test) | self.block(body, ways) | self.block(orelse, ways)
            case ast.While(test=test, body=body, orelse=orelse):
                # The way out through the test does not exist in `while True`.
                leaving = self.block(orelse, ways)
                head = self._read(test) | (_NOTHING if is_always_true(test) else leaving)
                return self._loop(body, head, ways, _NOTHING)
            case ast.For(target=target, iter=iterator, body=body, orelse=orelse):
                # A for loop whose body suspends reads its iterator, a variable, again after each turn.
                head = self.block(orelse, ways) | self._read(iterator) | self._read(target)
                return self._loop(body, head, ways, self._bound(target))
            case ast.Try():
                return self._try(statement, ways)
            case ast.With(items=items, body=body):
                # The managers may suppress what is raised in the block, wherever that is.
                inside = self.block(body, replace(ways, on_raise=ways.on_raise | after))
                targets = [item.optional_vars for item in items if item.optional_vars is not None]
                return after | (inside - self._bound(*targets)) | self._read(*items)
            case ast.Match(subject=subject, cases=cases):
                return after.union(
                    self._read(subject), *(self._case(case, self.block(case.body, ways)) for case in cases)
                )
            case ast.Return():
                return ways.on_return | self._read(statement)
            case ast.Raise():
                return self._read(statement)
            case ast.Break():
                return ways.on_break
            case ast.Continue():
                return ways.on_continue
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                return (after - self._bound(*targets_of(statement))) | self._read(statement)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                return self._renewed(after, {name}) | self._read(statement)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                return self._renewed(after, {(name.asname or name.name).split(".")[0] for name in names})
            case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Assert():
                return after | self._read(statement)
            case _:
                return after | ways.elsewhere() | self._read(statement)

    def _loop(self, body: list[ast.stmt], head: Live, ways: _Ways, bound: Live) -> Live:
        """The least fixed point of what is live at the head of a loop; sets only grow, so it is reached."""
        while True:
            turn = replace(ways, on=head, on_break=ways.on, on_continue=head)
            again = head | (self.block(body, turn) - bound)
            if again == head:
                return head
            head = again

    def _try(self, statement: ast.Try, ways: _Ways) -> Live:
        if statement.finalbody:
            done = self._form.completions.get(statement)
            held = ways.held if done is None else ways.held | {done}
            # Whichever way control takes, it leads through the finally.
            final = self.block(statement.finalbody, replace(ways, on=ways.on | ways.elsewhere(), held=held))
            ways = _Ways(final, final, final, final, final, ways.held)
        catches_all = any(handler.type is None for handler in statement.handlers)
        caught = _NOTHING if catches_all else ways.on_raise
        for handler in statement.handlers:
            variable = self._form.caught.get(handler)
            held = ways.held if variable is None else ways.held | {variable}
            body = self.block(handler.body, replace(ways, held=held))
            caught |= body if handler.name is None else self._renewed(body, {handler.name})
            caught |= _NOTHING if handler.type is None else self._read(handler.type)
        orelse = self.block(statement.orelse, ways)
        return self.block(statement.body, replace(ways, on=orelse, on_raise=caught))

    def _case(self, case: ast.match_case, body: Live) -> Live:
        guard = _NOTHING if case.guard is None else self._read(case.guard)
        return self._renewed(body | guard, bound_names(case.pattern)) | self._read(case.pattern)

    def _bound(self, *targets: ast.AST) -> Live:
        """Variables whose values before an assignment to the targets are nobody's any more."""
        return bound_names(*targets) - self._cells

    def _renewed(self, after: Live, names: Set[str]) -> Live:
        """What is live before a statement that gives the names new values."""
        return (after - names) | (self._cells & names)

    def _read(self, *nodes: ast.AST) -> Live:
        """Variables that the nodes mention other than to assign them, nested functions included."""
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
    """Whether the statement is one of the compiler's own that cannot raise."""
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
    """Variables that lose their value somewhere: by `del`, or at the end of `except ... as`."""
    names: set[str] = set()
    for node in own_nodes(*body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            names.add(node.name)
    return frozenset(names)
