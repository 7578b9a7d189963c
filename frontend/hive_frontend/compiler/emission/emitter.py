"""Turns the normal form into one plain function per state.

Each emitted function is a segment of the agent's code: from its start, or from an await, to the next awaits and
returns. The variables that a state carries are its parameters, and so real locals. Code behind the next await is in
other segments. A segment that resumes inside a `while` loop looks like this (`for` is similar):

    while test:                          for _hive_once in (None,):
        before                               after           # the rest of the interrupted iteration
        x = await gen(...)      ==>      else:
        after                                while test:     # the following iterations
                                                 before
                                                 return <suspend>

Python's own rules do the rest: `continue` in `after` ends the loop of one iteration and leads to its else; `break`
skips the else. A `try` is emitted again around the rest of its body. Its `finally` gets a guard, because a suspension
is a `return` to Python. A segment that resumes in an `except` or `finally` first raises the handled exception again,
so that Python knows of it:

    try:                                 try:
        before                               <reraise>
    except Problem:              ==>     except:
        x = await gen(...)                   <restore>
        after                                after
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from hive_frontend.compiler.analysis.syntax import (
    CONTINUE,
    FALL,
    LEAVE,
    Loop,
    Suspend,
    at,
    blocks_of,
    call,
    delete_name,
    exits,
    is_always_true,
    load,
    once,
    store,
)
from hive_frontend.compiler.lowering.joins import Join
from hive_frontend.compiler.lowering.liveness import Liveness
from hive_frontend.compiler.lowering.normal_form import NormalForm
from hive_frontend.compiler.lowering.preparation import final_return
from hive_frontend.compiler.running import hidden


@dataclass(frozen=True)
class Segment:
    """The code of one state."""

    function: ast.FunctionDef
    carried: tuple[str, ...]
    """The variables that it receives from the state."""
    cells: tuple[str, ...]
    """Its cell variables, both carried and new ones."""
    optional: int
    """How many of the carried variables, counted from the end, may be unbound."""
    leads_to: tuple[int, ...]
    """Suspension points that it can reach."""
    can_return: bool


class Emitter:
    """Emits the functions of one agent."""

    def __init__(
        self,
        form: NormalForm,
        liveness: Liveness,
        origin: ast.AsyncFunctionDef,
        cells: Set[str],
        held: Set[str],
    ) -> None:
        self._form = form
        self._liveness = liveness
        self._origin = origin
        self._cells = cells
        self._held = held
        """Variables whose values a state keeps when they are no longer live."""
        self._inner = {statement: _points_in(statement) for statement in _statements(form.body)}
        self._exceptions = {*form.caught.values(), *form.completions.values()}
        self._leads_to: set[int] = set()
        self._guarded = 0
        """Number of guarded `finally` clauses around the current code."""
        self._uses_left = False
        """Whether the current segment has guarded `finally` clauses."""

    def start(self, parameters: Sequence[str]) -> Segment:
        """Emit the segment from the start of the agent."""
        self._leads_to, self._uses_left = set(), False
        body = self._forward(self._form.body)
        # `x: ...` makes x a local variable; its assignments may be in other segments only.
        unbound = sorted(self._liveness.maybe_unbound.difference(parameters))
        local = [
            at(self._origin, ast.AnnAssign(store(name), ast.Constant(...), value=None, simple=1))
            for name in unbound
        ]
        return self._segment(f"{self._origin.name}__start", (), parameters, [*local, *body])

    def resume(self, point: int) -> Segment:
        """Emit the segment from the answer to suspension point `point`."""
        self._leads_to, self._uses_left = set(), False
        live, maybe_unbound = self._liveness.after[point], self._liveness.maybe_unbound
        surely, perhaps = sorted(live - maybe_unbound), sorted(live & maybe_unbound)
        prologue = [at(self._origin, _unbind(name)) for name in perhaps]
        body = self._rest(self._form.body, self._form.suspensions[point])
        name = f"{self._origin.name}__{point}"
        return self._segment(name, (hidden.REPLY,), [*surely, *perhaps], [*prologue, *body], len(perhaps))

    def _segment(
        self, name: str, first: Sequence[str], carried: Sequence[str], body: list[ast.stmt], optional: int = 0
    ) -> Segment:
        if FALL in exits(body):
            body = [*body, final_return(self._origin, None)]
        can_return = LEAVE in exits(body)
        if self._uses_left:
            body = [at(self._origin, ast.Assign([store(hidden.LEFT)], ast.Constant(None))), *body]
        cells = sorted(self._cells)
        if cells:
            # Cell variables belong to an enclosing function; `build` makes their cells.
            body = [at(self._origin, ast.Nonlocal(cells)), *body]
        own = [variable for variable in carried if variable not in self._cells]
        parameters = [*first, *(hidden.CELL + cell for cell in cells), *own, f"{hidden.HELD}=None"]
        # Parsed, because the fields of a function definition differ between versions of Python.
        function = ast.parse(f"def {name}({', '.join(parameters)}): pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        for node in ast.walk(function):
            ast.copy_location(node, self._origin)
        function.body = body
        leads_to = tuple(sorted(self._leads_to))
        return Segment(function, tuple(carried), tuple(cells), optional, leads_to, can_return)

    # From the start of a block

    def _forward(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Emit `body` from its start up to its suspensions."""
        out: list[ast.stmt] = []
        for statement in body:
            out.append(self._reached(statement))
            if FALL not in exits(out[-1:]):
                break
        return out

    def _reached(self, statement: ast.stmt) -> ast.stmt:
        """Emit `statement` from its start. Statements with suspensions are new nodes; segments share all others."""
        if not self._inner[statement]:
            return statement
        match statement:
            case Suspend():
                return self._suspend(statement)
            case ast.Try():
                return self._protected(statement, lambda: self._forward(statement.body))
            case ast.Match(subject=subject, cases=cases):
                reached = [
                    ast.match_case(case.pattern, case.guard, self._forward(case.body)) for case in cases
                ]
                return at(statement, ast.Match(subject, reached))
        assert isinstance(statement, (ast.If, *Loop))
        new = copy.copy(statement)
        new.body = self._forward(statement.body)
        # The else of `while True` is unreachable.
        forever = isinstance(statement, ast.While) and is_always_true(statement.test)
        new.orelse = [] if forever else self._forward(statement.orelse)
        return new

    def _protected(
        self, statement: ast.Try, body: Callable[[], list[ast.stmt]], *, handlers: bool = True
    ) -> ast.Try:
        """Wrap what `body` emits in the `finally` of a try, and in its handlers if `handlers` is set."""
        # To Python a suspension is a `return`; the `finally` must not run at it.
        guard = bool(statement.finalbody) and self._suspends_before_finally(statement)
        self._guarded += guard
        self._uses_left |= guard
        new = ast.Try(body(), [], [], [])
        if handlers:
            for handler in statement.handlers:
                forward = ast.ExceptHandler(handler.type, handler.name, self._forward(handler.body))
                new.handlers.append(at(handler, forward))
            if FALL in exits(new.body):
                new.orelse = self._forward(statement.orelse)
        self._guarded -= guard
        new.finalbody = self._forward(statement.finalbody)
        if guard:
            left = ast.Compare(load(hidden.LEFT), [ast.IsNot()], [ast.Constant(None)])
            leave = ast.If(left, [ast.Return(load(hidden.LEFT))], [])
            new.finalbody.insert(0, at(statement, leave))
        return at(statement, new)

    def _suspends_before_finally(self, statement: ast.Try) -> bool:
        inside = [*statement.body, *statement.orelse]
        inside += [inner for handler in statement.handlers for inner in handler.body]
        return any(self._inner[inner] for inner in inside)

    # From a suspension

    def _rest(self, body: list[ast.stmt], after: Suspend) -> list[ast.stmt]:
        """Emit what follows the suspension `after`, which is in `body`, up to the end of `body`."""
        index = next(i for i, statement in enumerate(body) if after.point in self._inner[statement])
        out = self._inside(body[index], after)
        return [*out, *self._forward(body[index + 1 :])] if FALL in exits(out) else out

    def _inside(self, statement: ast.stmt, after: Suspend) -> list[ast.stmt]:
        """Emit what follows the suspension `after`, which is `statement` or inside it, up to its end."""
        match statement:
            case Suspend():
                return _answered(statement)
            case ast.Match(cases=cases):
                return self._rest(next(case.body for case in cases if self._holds(case.body, after)), after)
            case ast.Try():
                return self._inside_try(statement, after)
        assert isinstance(statement, (ast.If, *Loop))
        if self._holds(statement.orelse, after):
            return self._rest(statement.orelse, after)
        rest = self._rest(statement.body, after)
        if isinstance(statement, ast.If):
            return rest
        more_iterations = exits(rest) & {FALL, CONTINUE}
        return [once(rest, [self._reached(statement)] if more_iterations else [], statement)]

    def _inside_try(self, statement: ast.Try, after: Suspend) -> list[ast.stmt]:
        if self._holds(statement.body, after):
            return [self._protected(statement, lambda: self._rest(statement.body, after))]
        if self._holds(statement.finalbody, after):
            done = self._form.completions[statement]
            interrupted = ast.Expr(call(hidden.RERAISE, load(done)))
            rest = [_restore(done), *self._rest(statement.finalbody, after)]
            return [at(after, ast.Try([interrupted], [], [], rest))]

        def past_handlers() -> list[ast.stmt]:
            for handler in statement.handlers:
                if self._holds(handler.body, after):
                    return self._inside_handler(handler, after)
            return self._rest(statement.orelse, after)

        if not statement.finalbody:
            return past_handlers()
        return [self._protected(statement, past_handlers, handlers=False)]

    def _inside_handler(self, handler: ast.ExceptHandler, after: Suspend) -> list[ast.stmt]:
        caught = self._form.caught[handler]
        rest = self._rest(handler.body, after)
        if handler.name is not None:
            rest = [ast.Try(rest, [], [], delete_name(handler.name))]
        again = ast.Raise(ast.Attribute(load(caught), "error", ast.Load()), None)
        back = ast.ExceptHandler(None, None, [_restore(caught), *rest])
        return [at(after, ast.Try([again], [back], [], []))]

    def _holds(self, body: list[ast.stmt], suspension: Suspend) -> bool:
        return any(suspension.point in self._inner[statement] for statement in body)

    # To a suspension

    def _suspend(self, node: Suspend) -> ast.stmt:
        """Emit `return <suspend>(point, value, {"name": variable, ...})`."""
        self._leads_to.add(node.point)
        live = self._liveness.after[node.point]
        surely = sorted(live - self._liveness.maybe_unbound)
        perhaps = sorted(live & self._liveness.maybe_unbound)
        keys: list[ast.expr | None] = [ast.Constant(name) for name in surely]
        values: list[ast.expr] = [
            call(hidden.SAVED, load(name))
            if name in self._exceptions
            else load(hidden.CELL + name if name in self._cells else name)
            for name in surely
        ]
        if perhaps:
            keys.append(None)
            # `<bound>(locals(), ("x", ...))` gives the variables that have a value.
            values.append(call(hidden.BOUND, call(hidden.LOCALS), _texts(perhaps)))
        if done_with := sorted(self._held - live):
            keys.append(None)
            values.append(call(hidden.HOLD, load(hidden.HELD), call(hidden.LOCALS), _texts(done_with)))
        suspended: ast.expr = call(
            hidden.SUSPEND, ast.Constant(node.point), node.value, ast.Dict(keys, values)
        )
        if self._guarded:
            suspended = ast.NamedExpr(store(hidden.LEFT), suspended)
        return at(node, ast.Return(suspended))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements of a normal form."""
    for statement in body:
        yield statement
        for block in blocks_of(statement):
            yield from _statements(block)


def _points_in(statement: ast.stmt) -> frozenset[int]:
    """Return the suspension points in a statement of a normal form."""
    if isinstance(statement, Suspend):
        return frozenset({statement.point})
    return frozenset().union(*(_points_in(inner) for block in blocks_of(statement) for inner in block))


def _answered(suspension: Suspend) -> list[ast.stmt]:
    """Emit `if type(reply) is <thrown>: raise reply.error`, with its exception context; then `targets = reply`."""
    is_thrown = ast.Compare(call(hidden.TYPE, load(hidden.REPLY)), [ast.Is()], [load(hidden.THROWN)])
    failed = ast.Raise(ast.Attribute(load(hidden.REPLY), "error", ast.Load()), None)
    join = ast.Expr(call(hidden.JOIN_CONTEXTS, load(hidden.REPLY)))
    failing = ast.Try([failed], [ast.ExceptHandler(None, None, [join, ast.Raise()])], [], [])
    statements: list[ast.stmt] = [] if isinstance(suspension, Join) else [ast.If(is_thrown, [failing], [])]
    if suspension.targets:
        statements.append(ast.Assign(suspension.targets, load(hidden.REPLY)))
    return [at(suspension, statement) for statement in statements]


def _restore(variable: str) -> ast.stmt:
    return ast.Expr(call(hidden.RESTORE, load(variable)))


def _unbind(name: str) -> ast.stmt:
    """Emit `if x is <unbound>: del x`, so that reading x raises the same error as in the original function."""
    test = ast.Compare(load(name), [ast.Is()], [load(hidden.UNBOUND)])
    return ast.If(test, [ast.Delete([ast.Name(name, ast.Del())])], [])


def _texts(names: list[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())
