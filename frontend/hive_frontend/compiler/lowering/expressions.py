"""The normal form of expressions: splits them at their awaits.

Invariant: what Python evaluates before an await is still evaluated before it, exactly once and in Python's order.
Expressions without an await stay unchanged.
"""

from __future__ import annotations

import ast
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from hive_frontend.compiler.analysis.names import Names, is_own_operation
from hive_frontend.compiler.analysis.syntax import (
    Comprehension,
    Suspend,
    at,
    awaits_per_iteration,
    call,
    has_await,
    load,
    store,
)
from hive_frontend.compiler.lowering.comprehensions import as_loops
from hive_frontend.compiler.running import hidden


class Expressions(ABC):
    """Lowers expressions to preceding statements; collects the new variables and suspensions."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.suspensions: list[Suspend] = []
        self.hidden: dict[str, str] = {}

    @abstractmethod
    def statement(self, statement: ast.stmt, out: list[ast.stmt]) -> None:
        """Append the normal form of a statement to `out`."""

    def suspend(
        self, written: ast.Await | ast.Yield, targets: Sequence[ast.expr], out: list[ast.stmt]
    ) -> None:
        """Append the suspension for an await or yield, whose answer is assigned to `targets`."""
        value = self._awaited_value(written, out)
        suspension = Suspend(value, list(targets), len(self.suspensions), written)
        self.suspensions.append(suspension)
        out.append(suspension)

    def _awaited_value(self, written: ast.Await | ast.Yield, out: list[ast.stmt]) -> ast.expr:
        if isinstance(written, ast.Yield):
            value = ast.Constant(None) if written.value is None else self.lower(written.value, out)
            return at(written, call(hidden.YIELD, value))
        awaited = written.value
        if isinstance(awaited, ast.Call) and not is_own_operation(self._names.resolve(awaited.func)):
            awaited = copy.copy(awaited)
            awaited.func = at(awaited.func, call(hidden.CALLEE, awaited.func))
        return self._operands(awaited, out) if isinstance(awaited, ast.Call) else self.lower(awaited, out)

    def lower(self, node: ast.expr, out: list[ast.stmt]) -> ast.expr:
        """Return an expression without awaits that has the value of `node` once `out` has run."""
        if not has_await(node):
            return node
        match node:
            case ast.Await() | ast.Yield():
                answer = self.name(node, "answer", f"the answer in line {node.lineno}")
                self.suspend(node, [store(answer.id)], out)
                return answer
            case ast.BoolOp(op=op, values=[first, *rest]):
                result = self.temporary(self.lower(first, out), out)
                for value in rest:
                    undecided: ast.expr = result
                    if isinstance(op, ast.Or):
                        undecided = ast.UnaryOp(ast.Not(), result)
                    out = self._branch(value, result, undecided, out)
                return result
            case ast.Compare(ops=[_, _, *_]):
                return self._chain(node, out)
            case ast.IfExp(test=test, body=then, orelse=otherwise):
                test = self.lower(test, out)
                result = self.name(node, "value", f"a value computed in line {node.lineno}")
                branches: list[list[ast.stmt]] = []
                for value in (then, otherwise):
                    branch: list[ast.stmt] = []
                    branch.append(at(value, ast.Assign([store(result.id)], self.lower(value, branch))))
                    branches.append(branch)
                out.append(at(node, ast.If(test, *branches)))
                return result
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return self._comprehension(node, out)
            case _:
                return self._operands(node, out)

    def spill(self, node: ast.expr, out: list[ast.stmt]) -> ast.expr:
        """Evaluate an operand now; return an expression that replaces it."""
        match node:
            case ast.Constant():
                return node
            case ast.Name(id=name) if name.startswith(hidden.HIDDEN) and name not in self.hidden:
                return node  # A function that the compiler added.
            case ast.Starred():
                unpacked = self.temporary(at(node, ast.List([node], ast.Load())), out)
                return at(node, ast.Starred(unpacked, ast.Load()))
            case ast.FormattedValue():
                text = self.temporary(at(node, ast.JoinedStr([node])), out)
                return at(node, ast.FormattedValue(text, -1, None))
            case ast.Slice():
                node = copy.copy(node)
                for field, place, part in list(_operands(node)):
                    _replace(node, field, place, self.spill(part, out))
                return node
            case ast.Attribute():
                # A bound method of a built-in type, such as `found.append`, must be wrapped to be copied.
                return self.temporary(at(node, call(hidden.BIND, node)), out)
            case _:
                return self.temporary(node, out)

    def temporary(self, value: ast.expr, out: list[ast.stmt]) -> ast.Name:
        """Evaluate `value` into a new variable of the compiler."""
        name = self.name(value, "value", f"a value computed in line {value.lineno}")
        out.append(at(value, ast.Assign([store(name.id)], value)))
        return name

    def name(self, origin: ast.AST, kind: str, meaning: str) -> ast.Name:
        """Return a new variable of the compiler; `meaning` describes it in messages."""
        name = f"{hidden.HIDDEN}{kind}_{len(self.hidden) + 1}"
        self.hidden[name] = meaning
        return at(origin, load(name))

    def _branch(
        self, value: ast.expr, result: ast.Name, test: ast.expr, out: list[ast.stmt]
    ) -> list[ast.stmt]:
        """Append `if test: result = value`; return the body of the `if`, to which more can be added."""
        body: list[ast.stmt] = []
        body.append(at(value, ast.Assign([store(result.id)], self.lower(value, body))))
        out.append(at(value, ast.If(at(value, test), body, [])))
        return body

    def _chain(self, node: ast.Compare, out: list[ast.stmt]) -> ast.expr:
        """Lower `a < b < c`: like `a < b and b < c`, but with `b` evaluated once."""
        left = self.spill(self.lower(node.left, out), out)
        result: ast.Name | None = None
        for number, (op, comparator) in enumerate(zip(node.ops, node.comparators, strict=True)):
            body = out if result is None else []
            right = self.lower(comparator, body)
            if number < len(node.ops) - 1:
                right = self.spill(right, body)
            pair = at(node, ast.Compare(left, [op], [right]))
            if result is None:
                result = self.temporary(pair, out)
            else:
                body.append(at(node, ast.Assign([store(result.id)], pair)))
                out.append(at(node, ast.If(result, body, [])))
                out = body
            left = right
        assert result is not None
        return result

    def _comprehension(self, node: Comprehension, out: list[ast.stmt]) -> ast.expr:
        first = node.generators[0]
        iterable = self.lower(first.iter, out)
        if not awaits_per_iteration(node):
            node = copy.copy(node)
            outer = copy.copy(first)
            outer.iter = iterable
            node.generators = [outer, *node.generators[1:]]
            return node
        what = f"the comprehension in line {node.lineno}"
        iterable = self.temporary(iterable, out)
        result = self.name(node, "made", f"the partial result of {what}")
        for statement in as_loops(node, iterable, result.id, lambda name: self._loop_variable(node, name)):
            self.statement(statement, out)
        return result

    def _loop_variable(self, node: Comprehension, name: str) -> str:
        return self.name(node, f"each_{name}", f"{name!r} of the comprehension in line {node.lineno}").id

    def _operands(self, node: ast.expr, out: list[ast.stmt]) -> ast.expr:
        """Return `node` with the awaits in its operands lowered, and the operands before the last await spilled."""
        operands = list(_operands(node))
        awaiting = [number for number, (_, _, operand) in enumerate(operands) if has_await(operand)]
        if not awaiting:
            return node
        node = copy.copy(node)
        for number, (field, place, operand) in enumerate(operands[: awaiting[-1] + 1]):
            lowered = self.lower(operand, out)
            if number < awaiting[-1]:
                if _is_unpacked_mapping(node, field, place):
                    lowered = at(lowered, ast.Dict([None], [lowered]))
                lowered = self.spill(lowered, out)
            _replace(node, field, place, lowered)
        return node


def _operands(node: ast.expr) -> Iterator[tuple[str, int | None, ast.expr]]:
    """Yield the operands of an expression in evaluation order: field, index in the field if it is a list, operand."""
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
                    # The target of `:=` is not evaluated. A format specification must stay an f-string.
                    if isinstance(item, ast.expr) and not (
                        (isinstance(node, ast.NamedExpr) and field == "target")
                        or (field == "format_spec" and not has_await(item))
                    ):
                        yield field, place, item


def _replace(node: ast.expr, field: str, place: int | None, operand: ast.expr) -> None:
    """Put `operand` into `node`. `node` is a shallow copy, so its lists are copied before they are changed."""
    if place is None:
        setattr(node, field, operand)
        return
    items = list(getattr(node, field))
    if field == "keywords":
        keyword: ast.keyword = items[place]
        items[place] = at(keyword, ast.keyword(keyword.arg, operand))
    else:
        items[place] = operand
    setattr(node, field, items)


def _is_unpacked_mapping(node: ast.expr, field: str, place: int | None) -> bool:
    """Whether an operand is unpacked by `**`."""
    if place is None:
        return False
    match node:
        case ast.Call():
            return field == "keywords" and node.keywords[place].arg is None
        case ast.Dict():
            return field == "values" and node.keys[place] is None
    return False
