"""Finds everything in an agent that cannot become states, before anything is compiled."""

from __future__ import annotations

import ast
import builtins
import re
from types import FunctionType
from typing import Any

from hive_frontend.call import gather, gen
from hive_frontend.compiler.source import Source
from hive_frontend.compiler.syntax import HIDDEN, Loop, Nested, has_await, own_nodes, targets_of
from hive_frontend.errors import Problem
from hive_frontend.flow_graph import FAIL, RETURN, START

_STATE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RESERVED = frozenset({START, RETURN, FAIL})

_OUTSIDE = "move the await before or after this statement and keep only its result in here"
_UNSUPPORTED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("an await inside try", _OUTSIDE),
    ast.TryStar: ("an await inside try", _OUTSIDE),
    ast.With: ("an await inside with", _OUTSIDE + "; what `with` holds open cannot be forked"),
    ast.Match: ("an await inside match", "await before the match, or use if/elif"),
    ast.Assert: ("an await inside assert", "await first, into a variable, and assert on that"),
    ast.Raise: ("an await inside raise", "await first, into a variable, and raise with that"),
    ast.Delete: ("an await inside del", "await first, into a variable"),
    ast.AsyncFor: ("async for", "collect the items before the agent runs and use a plain for"),
    ast.AsyncWith: ("async with", "open the resource outside the agent; it cannot be forked"),
}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NEEDS_FRAME = {
    function: f"pass the values you need by name instead of using {function}()"
    for function in ("locals", "eval", "exec", "vars", "dir")
}


class Names:
    """What the global, enclosing and built-in names of a function refer to now."""

    def __init__(self, function: FunctionType) -> None:
        code = function.__code__
        self.locals = frozenset(code.co_varnames) | frozenset(code.co_cellvars)
        self.free: dict[str, Any] = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._globals = function.__globals__

    def resolve(self, node: ast.expr) -> object:
        """The object that a name or a dotted name refers to; None if that is not known yet."""
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            # Only through modules and the like: the attribute of an instance may be computed.
            return (
                None if owner is None else vars(owner).get(node.attr) if hasattr(owner, "__dict__") else None
            )
        if not isinstance(node, ast.Name) or node.id in self.locals:
            return None
        if node.id in self.free:
            try:
                return self.free[node.id].cell_contents
            except ValueError:
                return None
        return self._globals.get(node.id, getattr(builtins, node.id, None))


def check(source: Source, names: Names) -> list[Problem]:
    """All problems of the agent, in the order of its source."""
    checker = _Checker(source, names)
    checker.check_block(source.node.body)
    return sorted(checker.problems, key=lambda problem: (problem.line, problem.column))


class _Checker:
    def __init__(self, source: Source, names: Names) -> None:
        self._source = source
        self._names = names
        self.problems: list[Problem] = []

    def _complain(self, node: ast.AST, what: str, fix: str) -> None:
        self.problems.append(self._source.problem(node, what, fix))

    def check_block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._check_statement(statement)

    def _check_statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, (ast.If, *Loop)):
            head = statement.iter if isinstance(statement, ast.For) else statement.test
            self._check_expressions(head)
            if isinstance(statement, ast.For):
                self._check_target(statement.target)
            if isinstance(statement, ast.While) and statement.orelse and has_await(statement.test):
                self._complain(
                    statement.test,
                    "an await in the test of a while loop that has an else",
                    "write `while True:` and test inside the loop",
                )
            self.check_block(statement.body)
            self.check_block(statement.orelse)
            return
        if (unsupported := _UNSUPPORTED.get(type(statement))) is not None and has_await(statement):
            first: ast.AST = statement
            if not isinstance(statement, (ast.AsyncFor, ast.AsyncWith)):
                first = next(
                    n for n in own_nodes(statement) if isinstance(n, ast.stmt | ast.expr) and _awaits(n)
                )
            self._complain(first, *unsupported)
            # The awaits inside were complained about as a whole; only what is wrong beside them is left.
            self._check_expressions(statement, awaits=False)
            return
        if isinstance(statement, Nested) and has_await(statement):
            self._complain(
                statement,
                "an await in a decorator, default or base of a nested definition",
                "await first, into a variable",
            )
            return
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            for target in targets_of(statement):
                self._check_target(target)
        if isinstance(statement, ast.Expr) and self._is_call_of(statement.value, gen, gather):
            self._complain(statement.value, "a model call that is not awaited", "write `await` before it")
        self._check_expressions(statement)

    def _check_target(self, target: ast.expr) -> None:
        if has_await(target):
            self._complain(target, "an await inside an assignment target", "await first, into a variable")

    def _check_expressions(self, root: ast.AST, *, awaits: bool = True) -> None:
        for node in own_nodes(root):
            match node:
                case ast.Await() if awaits:
                    self._check_await(node)
                case ast.Yield() | ast.YieldFrom():
                    self._complain(node, "yield in an agent", "return a list at the end instead")
                case ast.Global() | ast.Nonlocal():
                    self._complain(
                        node,
                        f"a {type(node).__name__.lower()} variable that the agent assigns to",
                        "keep it in a local variable: branches of a search must not share what they write",
                    )
                case ast.Compare(comparators=[_, *later]) if has_await(*later):
                    self._complain(
                        node,
                        "an await in the later part of a chained comparison",
                        "compare pairwise, with `and`",
                    )
                case ast.FormattedValue(format_spec=ast.expr() as spec) if has_await(spec):
                    self._complain(spec, "an await in a format specification", "await first, into a variable")
                case ast.Lambda() if has_await(*_lambda_defaults(node)):
                    self._complain(node, "an await in a default of a lambda", "await first, into a variable")
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
                case _ if isinstance(node, _COMPREHENSIONS) and has_await(node):
                    self._complain(
                        node,
                        "an await inside a comprehension",
                        "write a for loop, or `await gather(*[gen(...) for ...])`",
                    )

    def _is_call_of(self, node: ast.AST, *functions: object) -> bool:
        return isinstance(node, ast.Call) and any(
            self._names.resolve(node.func) is function for function in functions
        )

    def _check_await(self, node: ast.Await) -> None:
        call = node.value
        if not isinstance(call, ast.Call) or not self._is_call_of(call, gen, gather):
            self._complain(
                node,
                "an await of something else than a call of gen or gather",
                "await gen(...) or gather(...) itself; call plain functions without await",
            )
            return
        for inner in own_nodes(call):
            if isinstance(inner, ast.Call) and self._is_call_of(inner, gen, gather):
                for keyword in inner.keywords:
                    if keyword.arg == "name":
                        self._check_state_name(keyword.value)

    def _check_state_name(self, value: ast.expr) -> None:
        if isinstance(value, ast.Constant) and value.value is None:
            return
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            self._complain(
                value,
                "a state name that is not a literal",
                'write the name as a string, such as name="propose": the flow graph is drawn before any run',
            )
        elif not _STATE_NAME.fullmatch(value.value) or value.value in _RESERVED:
            self._complain(
                value,
                f"the state name {value.value!r}",
                "use 1 to 64 letters, digits and _ . -, and none of the names start, return and fail, "
                "which every agent has",
            )


def _awaits(node: ast.AST) -> bool:
    return isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) or (
        isinstance(node, _COMPREHENSIONS) and any(generator.is_async for generator in node.generators)
    )


def _lambda_defaults(node: ast.Lambda) -> list[ast.expr]:
    return [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
