"""The normal form of a function, in which every await is a statement of its own.

    total += rate(await gen(a)) + await gen(b)

becomes the following. States carry the temporaries like any other variable.

    t1 = total;  t2 = rate;  t3 = <await gen(a)>;  t4 = t2(t3);  t5 = <await gen(b)>
    t1 += t4 + t5;  total = t1

This module lowers statements; `expressions` lowers the expressions in them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Set
from dataclasses import dataclass

from hive_frontend.compiler.analysis.names import Names
from hive_frontend.compiler.analysis.syntax import (
    Suspend,
    at,
    call,
    delete_name,
    has_await,
    is_always_true,
    load,
    store,
)
from hive_frontend.compiler.lowering.completions import dispatch, record_jumps
from hive_frontend.compiler.lowering.expressions import Expressions
from hive_frontend.compiler.running import hidden


@dataclass
class NormalForm:
    """The body of an agent in normal form."""

    body: list[ast.stmt]
    suspensions: list[Suspend]
    """All suspension points; the number of each is its index in this list."""
    hidden: dict[str, str]
    """Descriptions of the variables that the compiler added."""
    caught: dict[ast.ExceptHandler, str]
    """Per `except` with suspensions in it: the variable that holds the handled exception."""
    completions: dict[ast.Try, str]
    """Per `finally` with suspensions in it: the variable that records how control left the `try`."""


def normalise(body: list[ast.stmt], names: Names, cells: Set[str] = frozenset()) -> NormalForm:
    """Return the normal form of a prepared function body in which the checker found no problems.

    `cells` are the cell variables.
    """
    normaliser = _Normaliser(names, cells)
    return NormalForm(
        normaliser.block(body),
        normaliser.suspensions,
        normaliser.hidden,
        normaliser.caught,
        normaliser.completions,
    )


class _Normaliser(Expressions):
    def __init__(self, names: Names, cells: Set[str]) -> None:
        super().__init__(names)
        self._cells = cells
        self.caught: dict[ast.ExceptHandler, str] = {}
        self.completions: dict[ast.Try, str] = {}

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body:
            self.statement(statement, out)
        return out

    def statement(self, statement: ast.stmt, out: list[ast.stmt]) -> None:
        if not has_await(statement):
            out.append(statement)
            return
        match statement:
            case ast.Expr(value=ast.Await() | ast.Yield() as value):
                self.suspend(value, [], out)
            case ast.Expr(value=value):
                out.append(at(statement, ast.Expr(self.lower(value, out))))
            case ast.Assign(targets=targets):
                self._assign(statement, targets, statement.value, out)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                # Python never evaluates annotations inside a function.
                self._assign(statement, [target], value, out)
            case ast.AugAssign():
                self._augmented(statement, out)
            case ast.Return(value=ast.expr() as value):
                out.append(at(statement, ast.Return(self.lower(value, out))))
            case ast.Raise(exc=ast.expr() as error, cause=cause):
                error = self.lower(error, out)
                if cause is not None and has_await(cause):
                    error, cause = self.spill(error, out), self.lower(cause, out)
                out.append(at(statement, ast.Raise(error, cause)))
            case ast.Assert():
                self._assert(statement, out)
            case ast.Delete(targets=deleted):
                for place in deleted:
                    self._delete(place, out)
            case ast.If():
                test = self.lower(statement.test, out)
                branches = self.block(statement.body), self.block(statement.orelse)
                out.append(at(statement, ast.If(test, *branches)))
            case ast.While():
                self._while(statement, out)
            case ast.For():
                self._for(statement, out)
            case ast.Match(subject=subject, cases=cases):
                subject = self.lower(subject, out)
                bodies = [ast.match_case(case.pattern, case.guard, self.block(case.body)) for case in cases]
                out.append(at(statement, ast.Match(subject, bodies)))
            case ast.Try():
                self._try(statement, out)
            case ast.With():
                self._with(statement, statement.items, out)
            case _:
                raise AssertionError(f"the checker did not reject: {ast.unparse(statement)}")

    # Assignments

    def _assign(
        self, statement: ast.stmt, targets: list[ast.expr], value: ast.expr, out: list[ast.stmt]
    ) -> None:
        if not has_await(*targets):
            if isinstance(value, (ast.Await, ast.Yield)):
                self.suspend(value, targets, out)
            else:
                out.append(at(statement, ast.Assign(targets, self.lower(value, out))))
            return
        # Python evaluates the value first, then each target as it is assigned to.
        value = self.spill(self.lower(value, out), out)
        for target in targets:
            self._assign_one(statement, target, value, out)

    def _assign_one(
        self, statement: ast.stmt, target: ast.expr, value: ast.expr, out: list[ast.stmt]
    ) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and has_await(target):
            parts: list[tuple[ast.expr, ast.Name]] = []
            unpacked: list[ast.expr] = []
            for element in target.elts:
                starred = isinstance(element, ast.Starred)
                part = self.name(element, "value", f"a value unpacked in line {element.lineno}")
                parts.append((element.value if isinstance(element, ast.Starred) else element, part))
                name: ast.expr = store(part.id)
                unpacked.append(ast.Starred(name, ast.Store()) if starred else name)
            out.append(at(statement, ast.Assign([ast.Tuple(unpacked, ast.Store())], value)))
            for element, part in parts:
                self._assign_one(statement, element, part, out)
            return
        out.append(at(statement, ast.Assign([self._place(target, out)], value)))

    def _place(self, target: ast.expr, out: list[ast.stmt]) -> ast.expr:
        """Return a target whose owner and index are evaluated already, with the same context."""
        owner: ast.expr
        match target:
            case ast.Attribute(value=owner, attr=attribute, ctx=context):
                return at(target, ast.Attribute(self._operand(owner, out), attribute, context))
            case ast.Subscript(value=owner, slice=index, ctx=context):
                owner = self._operand(owner, out)
                return at(target, ast.Subscript(owner, self._operand(index, out), context))
            case _:
                return target

    def _operand(self, node: ast.expr, out: list[ast.stmt]) -> ast.expr:
        return self.spill(self.lower(node, out), out)

    def _augmented(self, statement: ast.AugAssign, out: list[ast.stmt]) -> None:
        """Lower `target op= value`: Python reads the target before it evaluates the value."""
        target = statement.target
        if isinstance(target, ast.Name) and target.id in self.hidden:
            # The result of a comprehension; nothing else refers to it.
            out.append(at(statement, ast.AugAssign(target, statement.op, self.lower(statement.value, out))))
            return
        place = self._place(target, out)
        read = copy.copy(place)
        read.ctx = ast.Load()  # type: ignore[attr-defined]
        old = self.temporary(read, out)
        value = self.lower(statement.value, out)
        out.append(at(statement, ast.AugAssign(store(old.id), statement.op, value)))
        out.append(at(statement, ast.Assign([place], old)))

    def _delete(self, target: ast.expr, out: list[ast.stmt]) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._delete(element, out)
        else:
            place = self._place(target, out) if has_await(target) else target
            out.append(at(target, ast.Delete([place])))

    def _assert(self, statement: ast.Assert, out: list[ast.stmt]) -> None:
        if not __debug__:
            out.append(at(statement, ast.Pass()))
            return
        test, message = self.lower(statement.test, out), statement.msg
        if message is None or not has_await(message):
            out.append(at(statement, ast.Assert(test, message)))
            return
        failing: list[ast.stmt] = []
        message = self.lower(message, failing)
        failing.append(at(statement, ast.Assert(ast.Constant(False), message)))
        out.append(at(statement, ast.If(ast.UnaryOp(ast.Not(), test), failing, [])))

    # Loops

    def _while(self, loop: ast.While, out: list[ast.stmt]) -> None:
        if not has_await(loop.test):
            body, orelse = self.block(loop.body), self.block(loop.orelse)
            out.append(at(loop, ast.While(loop.test, body, orelse)))
            return
        head: list[ast.stmt] = []
        test = self.lower(loop.test, head)
        leave: list[ast.stmt] = [ast.Break()]
        if loop.orelse:
            ended = self.name(
                loop, "ended", f"whether the while loop in line {loop.lineno} ended without break"
            )
            out.append(at(loop, ast.Assign([store(ended.id)], ast.Constant(False))))
            leave.insert(0, ast.Assign([store(ended.id)], ast.Constant(True)))
        if not is_always_true(test):
            head.append(at(loop.test, ast.If(ast.UnaryOp(ast.Not(), test), leave, [])))
        out.append(at(loop, ast.While(ast.Constant(True), [*head, *self.block(loop.body)], [])))
        if loop.orelse:
            out.append(at(loop, ast.If(ended, self.block(loop.orelse), [])))

    def _for(self, loop: ast.For, out: list[ast.stmt]) -> None:
        iterable = self.lower(loop.iter, out)
        if not has_await(*loop.body, *loop.orelse):
            out.append(at(loop, ast.For(loop.target, iterable, loop.body, loop.orelse)))
            return
        # The iterator becomes a variable of the state. Iterators of Python's own collections can be copied: they hold
        # a reference to the collection and a position.
        meaning = f"the iterator of the for loop in line {loop.lineno}"
        iterator = self.name(loop.iter, "for", meaning)
        start = at(loop.iter, call(hidden.ITER, iterable))
        out.append(at(loop.iter, ast.Assign([store(iterator.id)], start)))
        body, orelse = self.block(loop.body), self.block(loop.orelse)
        out.append(at(loop, ast.For(loop.target, iterator, body, orelse)))

    # Protected blocks

    def _try(self, node: ast.Try, out: list[ast.stmt]) -> None:
        if not has_await(*node.finalbody):
            body = self.block(node.body)
            handlers = [self._handler(handler) for handler in node.handlers]
            out.append(at(node, ast.Try(body, handlers, self.block(node.orelse), node.finalbody)))
            return
        meaning = f"the exception or jump that the finally of the try in line {node.lineno} interrupted"
        done = self.name(node, "done", meaning).id
        protected: list[ast.stmt] = node.body
        if node.handlers:
            protected = [at(node, ast.Try(node.body, node.handlers, node.orelse, []))]
        protected, jumps = record_jumps(protected, done)
        nothing = at(node, ast.Assign([store(done)], ast.Constant(None)))
        failed = at(node, ast.Assign([store(done)], call(hidden.HANDLED)))
        body, final = self.block(protected), self.block(node.finalbody)
        if jumps:
            # An inner `finally` may raise after a jump has been recorded.
            handler = at(node, ast.ExceptHandler(None, None, [failed, ast.Raise()]))
            new = at(node, ast.Try(body, [handler], [nothing], final))
        else:
            # Saves one of the 20 nested blocks that Python allows.
            out.append(at(node, ast.Assign([store(done)], ast.Constant(False))))
            is_open = ast.Compare(load(done), [ast.Is()], [ast.Constant(False)])
            new = at(
                node, ast.Try([*body, nothing], [], [], [at(node, ast.If(is_open, [failed], [])), *final])
            )
        self.completions[new] = done
        out += [new, *dispatch(node, done, jumps)]

    def _handler(self, handler: ast.ExceptHandler) -> ast.ExceptHandler:
        if not has_await(*handler.body):
            return at(handler, ast.ExceptHandler(handler.type, handler.name, handler.body))
        meaning = f"the exception that the except in line {handler.lineno} handles"
        caught = self.name(handler, "caught", meaning).id
        keep: ast.stmt = at(handler, ast.Assign([store(caught)], call(hidden.HANDLED)))
        name, body = handler.name, handler.body
        if name is not None and name in self._cells:
            # A suspension leaves the handler, and Python would then empty the cell of the name.
            error = ast.Attribute(load(caught), "error", ast.Load())
            named = [ast.Assign([store(name)], error), ast.Try(body, [], [], delete_name(name))]
            name, body = None, [at(handler, statement) for statement in named]
        new = at(handler, ast.ExceptHandler(handler.type, name, [keep, *self.block(body)]))
        self.caught[new] = caught
        return new

    def _with(self, node: ast.With, items: list[ast.withitem], out: list[ast.stmt]) -> None:
        """Expand a `with` as in PEP 343, so that the rest of its block can move into another function."""
        if not items:
            out += self.block(node.body)
            return
        item, *later = items
        place = item.context_expr
        manager = self.name(place, "with", f"the context manager of the `with` in line {place.lineno}")
        out.append(at(place, ast.Assign([store(manager.id)], self.lower(place, out))))
        what = f"whether the block of the `with` in line {place.lineno} raised"
        raised = self.name(place, "raised", what)
        out.append(at(place, ast.Assign([store(raised.id)], ast.Constant(False))))
        entered: ast.expr = at(place, ast.Call(call(hidden.ENTER, manager), [], []))
        body: list[ast.stmt] = []
        if item.optional_vars is None:
            out.append(at(place, ast.Expr(entered)))
        else:
            entered = self.temporary(entered, out)
            body.append(at(item.optional_vars, ast.Assign([item.optional_vars], entered)))
        self._with(node, later, body)
        leave = call(hidden.EXIT, manager)
        information = ast.Starred(call(hidden.EXC_INFO), ast.Load())
        propagates = ast.UnaryOp(ast.Not(), ast.Call(leave, [information], []))
        handler = ast.ExceptHandler(
            None,
            None,
            [ast.Assign([store(raised.id)], ast.Constant(True)), ast.If(propagates, [ast.Raise()], [])],
        )
        normally = ast.Expr(ast.Call(leave, [ast.Constant(None)] * 3, []))
        final: ast.stmt = ast.If(ast.UnaryOp(ast.Not(), load(raised.id)), [normally], [])
        out.append(at(place, ast.Try(body, [at(place, handler)], [], [at(place, final)])))
