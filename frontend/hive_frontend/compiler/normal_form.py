"""Brings a function into a form in which every await is a statement of its own.

    total += rate(await gen(a)) + await gen(b)

becomes, with temporaries that are saved with the state like any other variable,

    t1 = total;  t2 = rate;  t3 = <await gen(a)>;  t4 = t2(t3);  t5 = <await gen(b)>
    t1 += t4 + t5;  total = t1

What Python evaluates before an await is evaluated before it here, exactly once and in Python's order: that is
the invariant of this module. Whatever has no await in it stays as the user wrote it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from hive_frontend.compiler.syntax import HIDDEN, Suspend, has_await, is_always_true, own_nodes

ITER, BIND, RETURN = f"{HIDDEN}iter", f"{HIDDEN}bind", f"{HIDDEN}return"

_Node = TypeVar("_Node", bound=ast.AST)


@dataclass
class NormalForm:
    """The body of an agent in normal form."""

    body: list[ast.stmt]
    suspensions: list[Suspend]
    """All suspension points; the number of each is its place in this list."""
    hidden: dict[str, str]
    """What the variables mean that the compiler brought in, in words."""


def normalise(body: list[ast.stmt]) -> NormalForm:
    """The normal form of a function body that the checker found nothing wrong with."""
    normaliser = _Normaliser()
    return NormalForm(normaliser.block(body), normaliser.suspensions, normaliser.hidden)


class _Normaliser:
    def __init__(self) -> None:
        self.suspensions: list[Suspend] = []
        self.hidden: dict[str, str] = {}

    # Statements

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body:
            self._statement(statement, out)
        return out

    def _statement(self, statement: ast.stmt, out: list[ast.stmt]) -> None:
        if not has_await(statement):
            out.append(_ReturnsMarked().visit(copy.deepcopy(statement)) if _returns(statement) else statement)
            return
        match statement:
            case ast.Expr(value=ast.Await(value=call)):
                self._suspend(self._operands(call, out), [], out)
            case ast.Expr(value=value):
                out.append(_at(statement, ast.Expr(self.lower(value, out))))
            case ast.Assign(targets=targets, value=ast.Await(value=call)):
                self._suspend(self._operands(call, out), targets, out)
            case ast.Assign(targets=targets, value=value):
                out.append(_at(statement, ast.Assign(targets, self.lower(value, out))))
            case ast.AnnAssign(target=target, value=ast.Await(value=call)):
                self._suspend(self._operands(call, out), [target], out)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                # Python never evaluates annotations inside a function.
                out.append(_at(statement, ast.Assign([target], self.lower(value, out))))
            case ast.AugAssign():
                self._augmented(statement, out)
            case ast.Return(value=ast.expr() as value):
                out.append(marked_return(statement, self.lower(value, out)))
            case ast.If():
                test = self.lower(statement.test, out)
                branches = self.block(statement.body), self.block(statement.orelse)
                out.append(_at(statement, ast.If(test, *branches)))
            case ast.While():
                self._while(statement, out)
            case ast.For():
                self._for(statement, out)
            case _:
                raise AssertionError(f"the checker let pass: {ast.unparse(statement)}")

    def _while(self, loop: ast.While, out: list[ast.stmt]) -> None:
        if not has_await(loop.test):
            body, orelse = self.block(loop.body), self.block(loop.orelse)
            out.append(_at(loop, ast.While(loop.test, body, orelse)))
            return
        head: list[ast.stmt] = []
        test = self.lower(loop.test, head)
        if not is_always_true(test):
            head.append(_at(loop.test, ast.If(_at(test, ast.UnaryOp(ast.Not(), test)), [ast.Break()], [])))
        out.append(_at(loop, ast.While(ast.Constant(True), [*head, *self.block(loop.body)], [])))

    def _for(self, loop: ast.For, out: list[ast.stmt]) -> None:
        iterable = self.lower(loop.iter, out)
        if not has_await(*loop.body, *loop.orelse):
            loop = copy.deepcopy(loop)
            loop.iter = iterable
            out.append(_ReturnsMarked().visit(loop))
            return
        # The iterator becomes a variable of the state. Those of Python's own collections can be copied: they
        # hold a reference to the collection and a position.
        meaning = f"the iterator of the for loop in line {loop.lineno}"
        iterator = self._name(loop.iter, "for", meaning)
        start = _at(loop.iter, ast.Call(ast.Name(ITER, ast.Load()), [iterable], []))
        out.append(_at(loop.iter, ast.Assign([_store(iterator)], start)))
        body, orelse = self.block(loop.body), self.block(loop.orelse)
        out.append(_at(loop, ast.For(loop.target, iterator, body, orelse)))

    def _augmented(self, statement: ast.AugAssign, out: list[ast.stmt]) -> None:
        """`target op= value`: Python reads the target before it evaluates the value."""
        target = statement.target
        place: ast.expr
        match target:
            case ast.Name(id=name):
                place = _at(target, ast.Name(name, ast.Load()))
            case ast.Attribute(value=owner, attr=attribute):
                place = _at(target, ast.Attribute(self._spill(owner, out), attribute, ast.Load()))
            case ast.Subscript(value=owner, slice=index):
                owner = self._spill(owner, out)
                place = _at(target, ast.Subscript(owner, self._spill(index, out), ast.Load()))
        old = self._temporary(place, out)
        value = self.lower(statement.value, out)
        out.append(_at(statement, ast.AugAssign(_store(old), statement.op, value)))
        stored = copy.copy(place)
        stored.ctx = ast.Store()
        out.append(_at(statement, ast.Assign([stored], old)))

    def _suspend(self, call: ast.expr, targets: list[ast.expr], out: list[ast.stmt]) -> None:
        suspension = Suspend(call, targets, len(self.suspensions))
        self.suspensions.append(suspension)
        out.append(suspension)

    # Expressions

    def lower(self, node: ast.expr, out: list[ast.stmt]) -> ast.expr:
        """An expression without awaits that has the value of `node`, given that `out` ran before it."""
        if not has_await(node):
            return node
        match node:
            case ast.Await(value=call):
                answer = self._name(node, "answer", f"the answer to the call in line {node.lineno}")
                self._suspend(self._operands(call, out), [_store(answer)], out)
                return answer
            case ast.BoolOp(op=op, values=[first, *rest]):
                result = self._temporary(self.lower(first, out), out)
                for value in rest:
                    body: list[ast.stmt] = []
                    body.append(_at(value, ast.Assign([_store(result)], self.lower(value, body))))
                    go_on: ast.expr = result
                    if isinstance(op, ast.Or):
                        go_on = _at(node, ast.UnaryOp(ast.Not(), result))
                    out.append(_at(value, ast.If(go_on, body, [])))
                    out = body
                return result
            case ast.IfExp(test=test, body=then, orelse=otherwise):
                test = self.lower(test, out)
                result = self._name(node, "value", f"a value computed in line {node.lineno}")
                branches: list[list[ast.stmt]] = []
                for value in (then, otherwise):
                    branch: list[ast.stmt] = []
                    branch.append(_at(value, ast.Assign([_store(result)], self.lower(value, branch))))
                    branches.append(branch)
                out.append(_at(node, ast.If(test, *branches)))
                return result
            case _:
                return self._operands(node, out)

    def _operands(self, node: ast.expr, out: list[ast.stmt]) -> ast.expr:
        """`node` with the awaits in its operands lowered, and the operands before them evaluated before."""
        operands = list(_operands(node))
        awaiting = [number for number, (_, _, operand) in enumerate(operands) if has_await(operand)]
        if not awaiting:
            return node
        node = copy.copy(node)
        for number, (field, place, operand) in enumerate(operands[: awaiting[-1] + 1]):
            lowered = self.lower(operand, out)
            if number < awaiting[-1]:
                if _is_unpacked_mapping(node, field, place):
                    lowered = _at(lowered, ast.Dict([None], [lowered]))
                lowered = self._spill(lowered, out)
            _replace(node, field, place, lowered)
        return node

    def _spill(self, node: ast.expr, out: list[ast.stmt]) -> ast.expr:
        """Evaluate an operand now; returns an expression that stands for it where it was."""
        match node:
            case ast.Constant():
                return node
            case ast.Starred():
                unpacked = self._temporary(_at(node, ast.List([node], ast.Load())), out)
                return _at(node, ast.Starred(unpacked, ast.Load()))
            case ast.FormattedValue():
                text = self._temporary(_at(node, ast.JoinedStr([node])), out)
                return _at(node, ast.FormattedValue(text, -1, None))
            case ast.Slice():
                node = copy.copy(node)
                for field, place, part in list(_operands(node)):
                    _replace(node, field, place, self._spill(part, out))
                return node
            case ast.Attribute():
                # A bound method of a built-in type, say `found.append`, could not be copied as it is.
                return self._temporary(_at(node, ast.Call(ast.Name(BIND, ast.Load()), [node], [])), out)
            case _:
                return self._temporary(node, out)

    def _temporary(self, value: ast.expr, out: list[ast.stmt]) -> ast.Name:
        name = self._name(value, "value", f"a value computed in line {value.lineno}")
        out.append(_at(value, ast.Assign([_store(name)], value)))
        return name

    def _name(self, at: ast.AST, kind: str, meaning: str) -> ast.Name:
        name = f"{HIDDEN}{kind}_{len(self.hidden) + 1}"
        self.hidden[name] = meaning
        return _at(at, ast.Name(name, ast.Load()))


class _ReturnsMarked(ast.NodeTransformer):
    """Marks the `return` statements of a function, which must be told from the returns of suspensions."""

    def visit_Return(self, node: ast.Return) -> ast.Return:
        return marked_return(node, node.value)

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave


def marked_return(at: ast.AST, value: ast.expr | None) -> ast.Return:
    """`return value` of the agent itself."""
    argument = ast.Constant(None) if value is None else value
    return _at(at, ast.Return(ast.Call(ast.Name(RETURN, ast.Load()), [argument], [])))


def _returns(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Return) for node in own_nodes(statement))


def _operands(node: ast.expr) -> Iterator[tuple[str, int | None, ast.expr]]:
    """The operands of an expression in the order in which Python evaluates them, each with its place.

    A value of a dict display and the value of a keyword argument stand in lists of their own.
    """
    match node:
        case ast.Dict(keys=keys, values=values):
            for number, (key, value) in enumerate(zip(keys, values, strict=True)):
                if key is not None:
                    yield "keys", number, key
                yield "values", number, value
        case ast.Call(func=function, args=arguments, keywords=keywords):
            yield "func", None, function
            for number, argument in enumerate(arguments):
                yield "args", number, argument
            for number, keyword in enumerate(keywords):
                yield "keywords", number, keyword.value
        case _:
            for field, value in ast.iter_fields(node):
                items: Iterable[tuple[int | None, object]] = (
                    enumerate(value) if isinstance(value, list) else [(None, value)]
                )
                for place, item in items:
                    # The target of `:=` is bound, not evaluated; a format specification has no await.
                    if isinstance(item, ast.expr) and not (
                        (isinstance(node, ast.NamedExpr) and field == "target") or field == "format_spec"
                    ):
                        yield field, place, item


def _replace(node: ast.expr, field: str, place: int | None, operand: ast.expr) -> None:
    """Put `operand` into `node`, which is a shallow copy: its lists may still be those of the original."""
    if place is None:
        setattr(node, field, operand)
        return
    items = list(getattr(node, field))
    if field == "keywords":
        keyword: ast.keyword = items[place]
        items[place] = _at(keyword, ast.keyword(keyword.arg, operand))
    else:
        items[place] = operand
    setattr(node, field, items)


def _is_unpacked_mapping(node: ast.expr, field: str, place: int | None) -> bool:
    """Whether an operand stands behind `**`."""
    if place is None:
        return False
    match node:
        case ast.Call():
            return field == "keywords" and node.keywords[place].arg is None
        case ast.Dict():
            return field == "values" and node.keys[place] is None
    return False


def _store(name: ast.Name) -> ast.Name:
    return _at(name, ast.Name(name.id, ast.Store()))


def _at(origin: ast.AST, node: _Node) -> _Node:
    """`node`, placed in the source where `origin` is, so that tracebacks through it show the user's line."""
    return ast.fix_missing_locations(ast.copy_location(node, origin))
