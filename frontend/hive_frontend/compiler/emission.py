"""Turns the normal form into one plain function per state.

Each emitted function is a stretch of the agent's code: from its start, or from an await, to the next awaits
and returns. The variables that a state carries are its parameters, hence real locals. What lies beyond the
next await is left out, for other functions to do. Going on inside a loop looks like this (`for` alike):

    while test:                          for _hive_once in (None,):
        before                               after           # the rest of the interrupted turn
        x = await gen(...)      ==>      else:
        after                                while test:     # the turns that follow
                                                 before
                                                 return <suspend>

Python's own rules do the rest: `continue` in `after` ends the loop of one turn and leads to its else,
`break` skips the else.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hive_frontend.compiler.liveness import Liveness
from hive_frontend.compiler.normal_form import RETURN, NormalForm, marked_return
from hive_frontend.compiler.syntax import (
    CONTINUE,
    FALL,
    HIDDEN,
    Loop,
    Suspend,
    exits,
    is_always_true,
    once,
    own_nodes,
)

SUSPEND, BOUND, UNBOUND = f"{HIDDEN}suspend", f"{HIDDEN}bound", f"{HIDDEN}unbound"
LOCALS = f"{HIDDEN}locals"
REPLY = f"{HIDDEN}reply"


@dataclass(frozen=True)
class Segment:
    """The code of one state."""

    function: ast.FunctionDef
    parameters: tuple[str, ...]
    leads_to: tuple[int, ...]
    """Suspension points that it can reach."""
    can_return: bool


class Emitter:
    """Emits the functions of one agent."""

    def __init__(self, form: NormalForm, liveness: Liveness, at: ast.AsyncFunctionDef) -> None:
        self._form = form
        self._liveness = liveness
        self._at = at
        self._inner = {statement: _points_in(statement) for statement in _statements(form.body)}
        self._leads_to: set[int] = set()

    def start(self, parameters: Sequence[str]) -> Segment:
        """The code from the beginning of the agent."""
        self._leads_to = set()
        body = self._forward(self._form.body)
        # `x: ...` makes x a local variable, which it might not be here if its assignments come later.
        unbound = sorted(self._liveness.maybe_unbound.difference(parameters))
        local = [ast.AnnAssign(_stored(name), ast.Constant(...), value=None, simple=1) for name in unbound]
        return self._segment(f"{self._at.name}__start", tuple(parameters), [*local, *body])

    def resume(self, point: int) -> Segment:
        """The code from the answer to suspension point `point`."""
        self._leads_to = set()
        parameters = tuple(sorted(self._liveness.after[point]))
        prologue = [_unbind(name) for name in parameters if name in self._liveness.maybe_unbound]
        body = self._rest(self._form.body, self._form.suspensions[point])
        return self._segment(f"{self._at.name}__{point}", (REPLY, *parameters), [*prologue, *body])

    def _segment(self, name: str, parameters: tuple[str, ...], body: list[ast.stmt]) -> Segment:
        if FALL in exits(body):
            body = [*body, marked_return(self._at, None)]
        can_return = any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == RETURN
            for node in own_nodes(*body)
        )
        # Parsed, because the fields of a function definition differ between versions of Python.
        function = ast.parse(f"def {name}({', '.join(parameters)}): pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        function.body = body
        for node in (function, *ast.walk(function.args)):
            ast.copy_location(node, self._at)
        ast.fix_missing_locations(function)
        return Segment(function, parameters, tuple(sorted(self._leads_to)), can_return)

    def _forward(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """`body` from its beginning, as far as it can get without an answer."""
        out: list[ast.stmt] = []
        for statement in body:
            out.append(self._reached(statement))
            if FALL not in exits(out[-1:]):
                break
        return out

    def _reached(self, statement: ast.stmt) -> ast.stmt:
        """`statement` from its beginning. A new node where there is a suspension: segments share the rest."""
        if not self._inner[statement]:
            return statement
        if isinstance(statement, Suspend):
            return self._suspend(statement)
        assert isinstance(statement, (ast.If, *Loop))
        new = copy.copy(statement)
        new.body = self._forward(statement.body)
        # The else of `while True` is never reached.
        forever = isinstance(statement, ast.While) and is_always_true(statement.test)
        new.orelse = [] if forever else self._forward(statement.orelse)
        return new

    def _rest(self, body: list[ast.stmt], after: Suspend) -> list[ast.stmt]:
        """What follows the suspension `after`, which lies in `body`, up to the end of `body`."""
        index = next(i for i, statement in enumerate(body) if after.point in self._inner[statement])
        out = self._inside(body[index], after)
        return [*out, *self._forward(body[index + 1 :])] if FALL in exits(out) else out

    def _inside(self, statement: ast.stmt, after: Suspend) -> list[ast.stmt]:
        """The same for a suspension that is `statement` or lies in it."""
        if isinstance(statement, Suspend):
            if not statement.targets:
                return []
            answer = ast.Assign(statement.targets, ast.Name(REPLY, ast.Load()))
            return [ast.fix_missing_locations(ast.copy_location(answer, statement))]
        assert isinstance(statement, (ast.If, *Loop))
        if any(after.point in self._inner[other] for other in statement.orelse):
            return self._rest(statement.orelse, after)
        rest = self._rest(statement.body, after)
        ways = exits(rest)
        if isinstance(statement, ast.If) or not ways:
            return rest
        more_turns = ways & {FALL, CONTINUE}
        return [once(rest, [self._reached(statement)] if more_turns else [], statement)]

    def _suspend(self, node: Suspend) -> ast.stmt:
        """`return <suspend>(point, call, {"name": value, ...})`."""
        self._leads_to.add(node.point)
        live = self._liveness.after[node.point]
        surely = sorted(live - self._liveness.maybe_unbound)
        perhaps = sorted(live & self._liveness.maybe_unbound)
        keys: list[ast.expr | None] = [ast.Constant(name) for name in surely]
        values: list[ast.expr] = [ast.Name(name, ast.Load()) for name in surely]
        if perhaps:
            keys.append(None)
            values.append(_bound_ones(perhaps))
        arguments = [ast.Constant(node.point), node.call, ast.Dict(keys, values)]
        call = ast.Call(ast.Name(SUSPEND, ast.Load()), arguments, [])
        return ast.fix_missing_locations(ast.copy_location(ast.Return(call), node))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a normal form that the emitter looks at."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, *Loop)):
            yield from _statements(statement.body)
            yield from _statements(statement.orelse)


def _points_in(statement: ast.stmt) -> frozenset[int]:
    """The suspension points in a statement of a normal form."""
    if isinstance(statement, Suspend):
        return frozenset({statement.point})
    if isinstance(statement, (ast.If, *Loop)):
        return frozenset().union(*map(_points_in, [*statement.body, *statement.orelse]))
    return frozenset()


def _stored(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def _unbind(name: str) -> ast.stmt:
    """`if x is <unbound>: del x`: so that reading it raises what the native function would raise."""
    test = ast.Compare(ast.Name(name, ast.Load()), [ast.Is()], [ast.Name(UNBOUND, ast.Load())])
    return ast.If(test, [ast.Delete([ast.Name(name, ast.Del())])], [])


def _bound_ones(names: list[str]) -> ast.expr:
    """`<bound>(locals(), ("x", ...))`: those of the variables that have a value."""
    table = ast.Call(ast.Name(LOCALS, ast.Load()), [], [])
    wanted = ast.Tuple([ast.Constant(name) for name in names], ast.Load())
    return ast.Call(ast.Name(BOUND, ast.Load()), [table, wanted], [])
