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
from collections.abc import Sequence
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
    has_await,
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

    def start(self, parameters: Sequence[str]) -> Segment:
        """The code from the beginning of the agent."""
        body = self._forward(self._form.body)
        # `x: ...` makes x a local variable, which it might not be here if its assignments come later.
        unbound = sorted(self._liveness.maybe_unbound.difference(parameters))
        local = [ast.AnnAssign(_stored(name), ast.Constant(...), value=None, simple=1) for name in unbound]
        return self._segment(f"{self._at.name}__start", tuple(parameters), local, body)

    def resume(self, point: int) -> Segment:
        """The code from the answer to suspension point `point`."""
        live = self._liveness.after[point]
        parameters = tuple(sorted(live))
        body = self._rest(self._form.body, point)
        prologue = [_unbind(name) for name in parameters if name in self._liveness.maybe_unbound]
        return self._segment(f"{self._at.name}__{point}", (REPLY, *parameters), prologue, body)

    def _segment(
        self, name: str, parameters: tuple[str, ...], prologue: Sequence[ast.stmt], body: list[ast.stmt]
    ) -> Segment:
        reached = sorted({node.point for node in own_nodes(*body) if isinstance(node, Suspend)})
        if FALL in exits(body):
            body = [*body, marked_return(self._at, None)]
        can_return = any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == RETURN
            for node in own_nodes(*body)
        )
        # Parsed, because the fields of a function definition differ between versions of Python.
        function = ast.parse(f"def {name}({', '.join(parameters)}): pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        function.body = [*prologue, *self._lowered(body)]
        for node in (function, *ast.walk(function.args)):
            ast.copy_location(node, self._at)
        ast.fix_missing_locations(function)
        return Segment(function, parameters, tuple(reached), can_return)

    # Which code belongs to a segment

    def _forward(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """`body` from its beginning, as far as it can get without an answer."""
        out: list[ast.stmt] = []
        for statement in body:
            out.append(self._reached(statement))
            if FALL not in exits(out[-1:]):
                break
        return out

    def _reached(self, statement: ast.stmt) -> ast.stmt:
        if isinstance(statement, Suspend) or not has_await(statement):
            return statement
        body, orelse = self._forward(statement.body), self._forward(statement.orelse)  # type: ignore[attr-defined]
        new: ast.stmt
        match statement:
            case ast.If(test=test):
                new = ast.If(test, body, orelse)
            case ast.While(test=test):
                new = ast.While(test, body, [] if is_always_true(test) else orelse)
            case ast.For(target=target, iter=iterator):
                new = ast.For(target, iterator, body, orelse)
            case _:
                raise AssertionError(f"no normal form: {ast.dump(statement)}")
        return ast.copy_location(new, statement)

    def _rest(self, body: list[ast.stmt], point: int) -> list[ast.stmt]:
        """What follows suspension point `point`, which lies in `body`, up to the end of `body`."""
        suspension = self._form.suspensions[point]
        index = next(i for i, statement in enumerate(body) if suspension in own_nodes(statement))
        out = self._inside(body[index], suspension)
        return [*out, *self._forward(body[index + 1 :])] if FALL in exits(out) else out

    def _inside(self, statement: ast.stmt, suspension: Suspend) -> list[ast.stmt]:
        if statement is suspension:
            if not suspension.targets:
                return []
            answer = ast.Assign(suspension.targets, ast.Name(REPLY, ast.Load()))
            return [ast.fix_missing_locations(ast.copy_location(answer, suspension))]
        assert isinstance(statement, (ast.If, *Loop))
        if suspension in own_nodes(*statement.orelse):
            return self._rest(statement.orelse, suspension.point)
        rest = self._rest(statement.body, suspension.point)
        if isinstance(statement, ast.If):
            return rest
        ways = exits(rest)
        if not ways:
            return rest
        more_turns = ways & {FALL, CONTINUE}
        return [once(rest, [self._reached(statement)] if more_turns else [], statement)]

    # From the normal form to Python

    def _lowered(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The block with its suspensions as `return` statements; `pass` where nothing is left."""
        return [self._lowered_statement(statement) for statement in body] or [ast.Pass()]

    def _lowered_statement(self, statement: ast.stmt) -> ast.stmt:
        if isinstance(statement, Suspend):
            return self._suspend(statement)
        if not has_await(statement):
            return statement
        # A new node, because segments share what they have in common.
        assert isinstance(statement, (ast.If, *Loop))
        new = copy.copy(statement)
        new.body = self._lowered(statement.body)
        new.orelse = self._lowered(statement.orelse) if statement.orelse else []
        return new

    def _suspend(self, node: Suspend) -> ast.stmt:
        """`return <suspend>(point, call, {"name": value, ...})`."""
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
