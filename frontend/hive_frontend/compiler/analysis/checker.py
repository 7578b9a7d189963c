"""Finds all unsupported constructs of an agent before compilation."""

from __future__ import annotations

import ast
import builtins
import re
from types import BuiltinFunctionType, FunctionType

from hive_frontend.compiler.analysis.names import AWAITED, Names, is_own_operation, never_awaitable
from hive_frontend.compiler.analysis.source import Source
from hive_frontend.compiler.analysis.syntax import (
    Nested,
    awaits,
    awaits_per_iteration,
    blocks_of,
    defaults_of,
    has_await,
    own_nodes,
)
from hive_frontend.compiler.flow_graph import FAIL, RETURN, START
from hive_frontend.compiler.running.hidden import HIDDEN
from hive_frontend.compiler.running.support import WHAT_WORKS
from hive_frontend.errors import Problem

_STATE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RESERVED = frozenset({START, RETURN, FAIL})

_FIRST = "await in a statement before this one, assign the answer to a variable, and use the variable here"
_UNSUPPORTED: dict[type[ast.AST], tuple[str, str]] = {
    ast.TryStar: (
        "an await inside try with except*",
        "catch the ExceptionGroup with a plain except, and look at its exceptions there",
    ),
    ast.AsyncFor: (
        "an `async for`, which an agent does not support",
        "collect the items in a separate `async def`, and loop over `await tool(that_function)`",
    ),
    ast.AsyncWith: (
        "an `async with`, which an agent does not support: its resource cannot be forked",
        "use the resource in a separate `async def`, and `await tool(that_function)`; or open it outside the agent",
    ),
}
_BLOCKS = frozenset({"body", "orelse", "finalbody", "handlers", "cases"})
_NEEDS_FRAME = {
    function: f"use the variables that you need by name instead of {function}()"
    for function in ("locals", "eval", "exec", "vars", "dir")
}


def check(source: Source, names: Names) -> list[Problem]:
    """Return all problems of the agent, in source order."""
    checker = _Checker(source, names)
    checker.check_block(source.node.body)
    return sorted(checker.problems, key=lambda problem: (problem.line, problem.column))


class _Checker:
    def __init__(self, source: Source, names: Names) -> None:
        self._source = source
        self._names = names
        self._read = {
            node.id
            for node in ast.walk(source.node)
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
        }
        self.problems: list[Problem] = []

    def _report(self, node: ast.AST, what: str, fix: str) -> None:
        self.problems.append(self._source.problem(node, what, fix))

    def check_block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._check_statement(statement)

    def _check_statement(self, statement: ast.stmt) -> None:
        if (unsupported := _UNSUPPORTED.get(type(statement))) is not None and has_await(statement):
            first: ast.AST = statement
            if isinstance(statement, ast.TryStar):
                first = next(node for node in own_nodes(statement) if awaits(node))
            self._report(first, *unsupported)
            # The awaits inside are reported already; report only other problems.
            self._check_expressions(statement, awaited=False)
            return
        if isinstance(statement, Nested) and has_await(statement):
            self._report(
                statement, "an await in a decorator, default or base class of a nested definition", _FIRST
            )
            return
        self._check_places(statement)
        self._check_used(statement)
        if isinstance(statement, Nested):
            self._check_expressions(statement)
            return
        for field, value in ast.iter_fields(statement):
            if field not in _BLOCKS:
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST):
                        self._check_expressions(part)
        for block in blocks_of(statement):
            self.check_block(block)

    def _check_places(self, statement: ast.stmt) -> None:
        """Report problems of the statement itself, and awaits in places of it that do not support them."""
        match statement:
            case ast.For(target=target):
                self._forbid_await(target, "the target of a for loop")
            case ast.With(items=items):
                for item in items:
                    self._forbid_await(item.optional_vars, "the target of a with")
            case ast.Try(handlers=handlers) | ast.TryStar(handlers=handlers):
                for handler in handlers:
                    self._forbid_await(handler.type, "the head of an except")
            case ast.Match(cases=cases):
                for case in cases:
                    self._forbid_await(case.guard, "the guard of a case")
            case ast.Global() | ast.Nonlocal():
                self._report(
                    statement,
                    f"a {type(statement).__name__.lower()} variable that the agent assigns to",
                    "use a local variable: branches of a search must not share variables that they assign to",
                )
            case ast.Expr(value=forgotten):
                self._require_await(forgotten)

    def _check_used(self, node: ast.AST) -> None:
        """Report calls without `await` whose answers are used."""
        match node:
            case ast.If(test=used) | ast.While(test=used) | ast.IfExp(test=used) | ast.Assert(test=used):
                self._require_await(used)
            case ast.For(iter=used) | ast.comprehension(iter=used) | ast.Return(value=ast.expr() as used):
                self._require_await(used)
            case ast.UnaryOp(operand=used) | ast.FormattedValue(value=used):
                self._require_await(used)
            case ast.Attribute(value=used) | ast.Subscript(value=used):
                self._require_await(used)
            case ast.Compare(left=left, comparators=others):
                self._require_await(left, *others)
            case ast.BinOp(left=left, right=right):
                self._require_await(left, right)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in self._read:
                self._require_await(value)
            case ast.BoolOp(values=[*tested, _]):
                self._require_await(*tested)

    def _require_await(self, *used: ast.expr) -> None:
        for node in used:
            called = self._names.resolve(node.func) if isinstance(node, ast.Call) else None
            if is_own_operation(called) and getattr(called, "__name__", "") in AWAITED:
                name = getattr(called, "__name__", "")
                self._report(node, f"a call of {name} that is not awaited", "write `await` before it")

    def _forbid_await(self, node: ast.expr | None, place: str) -> None:
        if node is not None and has_await(node):
            self._report(node, f"an await inside {place}", _FIRST)

    def _check_expressions(self, root: ast.AST, *, awaited: bool = True) -> None:
        for node in own_nodes(root):
            self._check_used(node)
            match node:
                case ast.Await() if awaited:
                    self._check_await(node)
                case ast.Lambda() if has_await(*defaults_of(node.args)):
                    self._report(node, "an await in the default of a lambda", _FIRST)
                case ast.Call(func=ast.Name(id=function)) if (
                    function in _NEEDS_FRAME
                    and (function not in ("vars", "dir") or not node.args)
                    and self._names.resolve(node.func) is getattr(builtins, function)
                ):
                    self._report(
                        node,
                        f"{function}(), which does not see all variables of an agent",
                        _NEEDS_FRAME[function],
                    )
                case ast.Name(id=name) if name.startswith(HIDDEN):
                    self._report(
                        node, f"a name that begins with {HIDDEN}, which is reserved", "choose another name"
                    )
                case ast.comprehension(is_async=1) if awaited:
                    self._report(node.target, *_UNSUPPORTED[ast.AsyncFor])
                case ast.GeneratorExp() if awaited and awaits_per_iteration(node):
                    self._report(
                        node, "an await inside a generator expression", "use a list comprehension: [...]"
                    )

    def _check_await(self, node: ast.Await) -> None:
        match node.value:
            case ast.Call(func=function) as call:
                if never_awaitable(self._names.resolve(function)):
                    what = f"an await of {ast.unparse(function)}(), which an agent cannot await"
                    self._report(node, what, WHAT_WORKS)
                for inner in own_nodes(call):
                    if isinstance(inner, ast.Call) and is_own_operation(self._names.resolve(inner.func)):
                        self._check_state_names(inner)
            case ast.Name() | ast.Attribute() as name:
                known = self._names.resolve(name)
                if isinstance(known, (type, BuiltinFunctionType, FunctionType)):
                    self._report(
                        node,
                        "an await of a function that is not called",
                        f"call it: await {ast.unparse(name)}(...)",
                    )
            case ast.Constant() | ast.JoinedStr() | ast.List() | ast.Tuple() | ast.Dict() | ast.Set():
                self._report(node, "an await of something that cannot be awaited", WHAT_WORKS)

    def _check_state_names(self, call: ast.Call) -> None:
        for keyword in call.keywords:
            value = keyword.value
            if keyword.arg != "name" or (isinstance(value, ast.Constant) and value.value is None):
                continue
            if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                self._report(
                    value,
                    "a state name that is not a literal",
                    'write the name as a string, such as name="propose": the flow graph needs it before any run',
                )
            elif not _STATE_NAME.fullmatch(value.value) or value.value in _RESERVED:
                self._report(
                    value,
                    f"the state name {value.value!r}, which is not allowed",
                    "use 1 to 64 letters, digits and the characters _ . -; the names start, return and fail are "
                    "reserved",
                )
