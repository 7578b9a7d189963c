"""Finds everything in an agent that cannot become states, before anything is compiled."""

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
    awaits_in_turns,
    blocks_of,
    has_await,
    own_nodes,
)
from hive_frontend.compiler.flow_graph import FAIL, RETURN, START
from hive_frontend.compiler.running.hidden import HIDDEN
from hive_frontend.compiler.running.support import WHAT_WORKS
from hive_frontend.errors import Problem

_STATE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RESERVED = frozenset({START, RETURN, FAIL})

_FIRST = "await first, into a variable"
_UNSUPPORTED: dict[type[ast.AST], tuple[str, str]] = {
    ast.TryStar: ("an await inside try with except*", "use a plain except, and look into the group there"),
    ast.AsyncFor: (
        "async for",
        "collect the items in an `async def` of its own, and loop over `await tool(that_function)`",
    ),
    ast.AsyncWith: (
        "async with",
        "do what needs the resource in an `async def` of its own, and `await tool(that_function)`, or open it "
        "outside the agent; it cannot be forked",
    ),
}
_BLOCKS = frozenset({"body", "orelse", "finalbody", "handlers", "cases"})
_NEEDS_FRAME = {
    function: f"pass the values you need by name instead of using {function}()"
    for function in ("locals", "eval", "exec", "vars", "dir")
}


def check(source: Source, names: Names) -> list[Problem]:
    """All problems of the agent, in the order of its source."""
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

    def _complain(self, node: ast.AST, what: str, fix: str) -> None:
        self.problems.append(self._source.problem(node, what, fix))

    def check_block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._check_statement(statement)

    def _check_statement(self, statement: ast.stmt) -> None:
        if (unsupported := _UNSUPPORTED.get(type(statement))) is not None and has_await(statement):
            first: ast.AST = statement
            if isinstance(statement, ast.TryStar):
                first = next(node for node in own_nodes(statement) if awaits(node))
            self._complain(first, *unsupported)
            # The awaits inside were complained about as a whole; only what is wrong beside them is left.
            self._check_expressions(statement, awaited=False)
            return
        if isinstance(statement, Nested) and has_await(statement):
            self._complain(
                statement, "an await in a decorator, default or base of a nested definition", _FIRST
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
        """Problems of the statement itself, and places in it where no await may stand."""
        match statement:
            case ast.For(target=target):
                self._no_await(target, "the target of a for loop")
            case ast.With(items=items):
                for item in items:
                    self._no_await(item.optional_vars, "the target of a with")
            case ast.Try(handlers=handlers) | ast.TryStar(handlers=handlers):
                for handler in handlers:
                    self._no_await(handler.type, "the head of an except")
            case ast.Match(cases=cases):
                for case in cases:
                    self._no_await(case.guard, "the guard of a case")
            case ast.Global() | ast.Nonlocal():
                self._complain(
                    statement,
                    f"a {type(statement).__name__.lower()} variable that the agent assigns to",
                    "keep it in a local variable: branches of a search must not share what they write",
                )
            case ast.Expr(value=forgotten):
                self._no_call(forgotten)

    def _check_used(self, node: ast.AST) -> None:
        """Calls that are taken for their answers."""
        match node:
            case ast.If(test=used) | ast.While(test=used) | ast.IfExp(test=used) | ast.Assert(test=used):
                self._no_call(used)
            case ast.For(iter=used) | ast.comprehension(iter=used) | ast.Return(value=ast.expr() as used):
                self._no_call(used)
            case ast.UnaryOp(operand=used) | ast.FormattedValue(value=used):
                self._no_call(used)
            case ast.Attribute(value=used) | ast.Subscript(value=used):
                self._no_call(used)
            case ast.Compare(left=left, comparators=others):
                self._no_call(left, *others)
            case ast.BinOp(left=left, right=right):
                self._no_call(left, right)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in self._read:
                self._no_call(value)
            case ast.BoolOp(values=[*tested, _]):
                self._no_call(*tested)

    def _no_call(self, *used: ast.expr) -> None:
        for node in used:
            called = self._names.resolve(node.func) if isinstance(node, ast.Call) else None
            if is_own_operation(called) and getattr(called, "__name__", "") in AWAITED:
                self._complain(node, "a model call that is not awaited", "write `await` before it")

    def _no_await(self, node: ast.expr | None, place: str) -> None:
        if node is not None and has_await(node):
            self._complain(node, f"an await inside {place}", _FIRST)

    def _check_expressions(self, root: ast.AST, *, awaited: bool = True) -> None:
        for node in own_nodes(root):
            self._check_used(node)
            match node:
                case ast.Await() if awaited:
                    self._check_await(node)
                case ast.Lambda() if has_await(*_lambda_defaults(node)):
                    self._complain(node, "an await in a default of a lambda", _FIRST)
                case ast.Call(func=ast.Name(id=function)) if (
                    function in _NEEDS_FRAME
                    and (function not in ("vars", "dir") or not node.args)
                    and self._names.resolve(node.func) is getattr(builtins, function)
                ):
                    self._complain(
                        node,
                        f"{function}() in an agent, whose variables are not in one frame",
                        _NEEDS_FRAME[function],
                    )
                case ast.Name(id=name) if name.startswith(HIDDEN):
                    self._complain(node, f"a name that begins with {HIDDEN}", "choose another name")
                case ast.comprehension(is_async=1) if awaited:
                    self._complain(node.target, *_UNSUPPORTED[ast.AsyncFor])
                case ast.GeneratorExp() if awaited and awaits_in_turns(node):
                    self._complain(
                        node, "an await inside a generator expression", "use a list comprehension: [...]"
                    )

    def _check_await(self, node: ast.Await) -> None:
        match node.value:
            case ast.Call(func=function) as call:
                if never_awaitable(self._names.resolve(function)):
                    what = f"an await of {ast.unparse(function)}(), which a search cannot do"
                    self._complain(node, what, WHAT_WORKS)
                for inner in own_nodes(call):
                    if isinstance(inner, ast.Call) and is_own_operation(self._names.resolve(inner.func)):
                        self._check_state_names(inner)
            case ast.Name() | ast.Attribute() as name:
                known = self._names.resolve(name)
                if isinstance(known, (type, BuiltinFunctionType, FunctionType)):
                    self._complain(
                        node, "an await of a function that is not called", f"await {ast.unparse(name)}(...)"
                    )
            case ast.Constant() | ast.JoinedStr() | ast.List() | ast.Tuple() | ast.Dict() | ast.Set():
                self._complain(node, "an await of something that cannot be awaited", WHAT_WORKS)

    def _check_state_names(self, call: ast.Call) -> None:
        for keyword in call.keywords:
            value = keyword.value
            if keyword.arg != "name" or (isinstance(value, ast.Constant) and value.value is None):
                continue
            if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                self._complain(
                    value,
                    "a state name that is not a literal",
                    'write the name as a string, such as name="propose": the flow graph is drawn before any '
                    "run",
                )
            elif not _STATE_NAME.fullmatch(value.value) or value.value in _RESERVED:
                self._complain(
                    value,
                    f"the state name {value.value!r}",
                    "use 1 to 64 letters, digits and _ . -, and none of the names start, return and fail, "
                    "which every agent has",
                )


def _lambda_defaults(node: ast.Lambda) -> list[ast.expr]:
    return [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
