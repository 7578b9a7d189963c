"""A branch of an agent as data: the stack of its suspended functions, and how to resume and fork it.

An agent may call `async def` helpers, which are compiled in the same way. While a helper awaits, the branch consists of
several suspended functions, the innermost last.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from types import CellType, CodeType
from typing import Any, NamedTuple, cast
from weakref import WeakSet

from hive_frontend.compiler import Invoke, Point, Program, Returned, Suspended, Thrown, Yield, program_of
from hive_frontend.compiler.running.hidden import HELD
from hive_frontend.errors import ForkError, HiveError
from hive_frontend.operation import (
    SCOPES_WITH_OPERATIONS,
    Operation,
    Scope,
    current_environment,
    never_awaited,
)
from hive_frontend.operations import fork

_DEEP_RECURSION_LIMIT = 1_000_000
"""Recursion limit for copying data that is nested too deeply for the default limit."""

_warned: WeakSet[CodeType] = WeakSet()
"""Functions that a warning was given for."""


class Frame(NamedTuple):
    """A suspended function."""

    program: Program
    point: Point
    variables: dict[str, Any]


class Waiting(NamedTuple):
    """A suspended branch: its frames, and the operation that it waits for."""

    frames: tuple[Frame, ...]
    operation: Operation[Any] | Yield
    context: Context | None = None
    """Context variables, or None if the branch has set none."""

    @property
    def point(self) -> Point:
        """The suspension point at which it waits."""
        return self.frames[-1].point

    def __fork__(self, memo: fork.Memo) -> Waiting:
        return fork_branch(self, memo)


@dataclass(frozen=True, slots=True)
class Ended:
    """A branch that has returned."""

    value: Any


def start(program: Program, arguments: Mapping[str, Any]) -> Waiting | Ended:
    """Run an agent from its start to its first operation, or to its end."""
    return _run([], program, None, arguments, None)


def resume(waiting: Waiting, answer: Any) -> Waiting | Ended:
    """Resume a branch with the answer to its operation. With a `Thrown`, the `await` raises.

    `waiting` must not be used afterwards: the branch continues with the variables themselves, not with copies.
    """
    stack = list(waiting.frames)
    program, point, variables = stack.pop()
    return _run(stack, program, point, variables, answer)


def _run(
    stack: list[Frame],
    program: Program,
    point: Point | None,
    variables: Mapping[str, Any],
    answer: Any,
) -> Waiting | Ended:
    """Run a function from `point`, or from its start with `variables` as arguments, to the next operation.

    Calls of helpers, and their returns and exceptions, are executed in this loop; `stack` holds the callers.
    """
    while True:
        try:
            outcome = program.start(variables) if point is None else program.resume(point, variables, answer)
        except BaseException as error:
            if not stack:
                if type(scope := current_environment()) is Scope:
                    SCOPES_WITH_OPERATIONS.discard(scope)
                    scope.last_operation = None
                    scope.earlier_operations.clear()
                raise
            (program, point, variables), answer = stack.pop(), Thrown(error)
            continue
        if type(outcome) is Returned:
            if not stack:
                if SCOPES_WITH_OPERATIONS:
                    _warn_of_forgotten(program, point, None)
                if isinstance(outcome.value, Operation):
                    raise TypeError(f"the agent returned {outcome.value!r}: write `return await ...`")
                return Ended(outcome.value)
            (program, point, variables), answer = stack.pop(), outcome.value
            continue
        assert isinstance(outcome, Suspended)
        operation = outcome.operation
        stack.append(Frame(program, outcome.point, outcome.variables))
        if type(operation) is not Invoke:
            if SCOPES_WITH_OPERATIONS:
                _warn_of_forgotten(program, point, operation)
            return Waiting(tuple(stack), cast("Operation[Any] | Yield", operation))
        try:
            program = _helper(operation)
        except BaseException as error:
            (program, point, variables), answer = stack.pop(), Thrown(error)
        else:
            point, variables = None, operation.arguments


def _warn_of_forgotten(program: Program, point: Point | None, awaited: object) -> None:
    """Warn of operations that the code after `point`, or from the start, made without awaiting them."""
    scope = current_environment()
    if type(scope) is not Scope or scope not in SCOPES_WITH_OPERATIONS:
        return
    SCOPES_WITH_OPERATIONS.remove(scope)
    if scope.last_operation is awaited and not scope.earlier_operations:
        scope.last_operation = None
        return
    code = program.function.__code__
    line = code.co_firstlineno if point is None else point.line
    for operation in never_awaited(scope):
        message = f"{program.name}: {operation!r} is never executed: write `await` before the call"
        warnings.warn_explicit(message, RuntimeWarning, code.co_filename, line)


def warn_of_exits(waiting: Waiting) -> None:
    """Warn, once per function, that a branch is dropped inside a `with` or `try` whose end never runs."""
    for program, point, _ in waiting.frames:
        code = program.function.__code__
        if point.guarded and code not in _warned:
            _warned.add(code)
            warnings.warn_explicit(
                f"{program.name}: a branch is dropped inside a `with` or `try`, so its `__exit__` or `finally` "
                "does not run: use data that cleans up after itself, such as a Workspace, or await outside of the "
                "block",
                RuntimeWarning,
                code.co_filename,
                point.line,
            )


def _helper(call: Invoke) -> Program:
    program = program_of(call.function)
    if program.is_generator:
        raise HiveError(
            f"{call.function.__qualname__} is an async generator, which cannot be awaited: make it an @agent, spawn "
            "it, and await its next()"
        )
    return program


def fork_branch(waiting: Waiting, memo: fork.Memo) -> Waiting:
    """Return a copy of a suspended branch. All parts share one memo, so one object stays one object in the copy.

    Raises:
        ForkError: if something cannot be copied; names the variable.
    """
    outermost = not memo
    try:
        return _fork_branch(waiting, memo)
    except RecursionError:
        if not outermost:
            raise
    # Deeply nested data, such as a long linked list. Copying it does not use the C stack.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEP_RECURSION_LIMIT))
    try:
        memo.clear()
        return _fork_branch(waiting, memo)
    except RecursionError as error:
        raise ForkError(_fork_failure(waiting.frames[-1], "its data", error)) from error
    finally:
        sys.setrecursionlimit(limit)


def _fork_branch(waiting: Waiting, memo: fork.Memo) -> Waiting:
    # Hot path: a search forks at every firing.
    suspended, awaited, context = waiting.frames, waiting.operation, waiting.context
    own = _own_helpers(waiting, memo) if len(suspended) > 1 else None
    for program, _, variables in suspended:
        if outer := program.outer_objects(closure=not own or program not in own):
            memo.update(outer)
        if program.shared:
            for shared in shared_objects(program, variables):
                memo[id(shared)] = shared
    frames = []
    for program, point, variables in suspended:
        copied = {}
        name = ""
        try:
            for name, value in variables.items():
                copied[name] = value if type(value) in fork.ATOMS else fork.copy(value, memo)
        except RecursionError:
            raise
        except Exception as error:
            raise ForkError(_explain(program, point, name, contents(variables[name]), error)) from error
        if own and program in own:
            program = fork.copy(program, memo)
        frames.append(Frame(program, point, copied))
    # The operation is in the memo if a variable refers to it.
    operation = memo.get(id(awaited))
    try:
        if operation is None:
            operation = fork.copy(awaited, memo) if isinstance(awaited, Yield) else awaited.__fork__(memo)
    except RecursionError:
        raise
    except Exception as error:
        what = f"the awaited operation, of type {type(awaited).__name__},"
        raise ForkError(_fork_failure(suspended[-1], what, error)) from error
    return Waiting(tuple(frames), operation, context if context is None else context.copy())


def _own_helpers(waiting: Waiting, memo: fork.Memo) -> list[Program]:
    """Return the running helpers that the agent itself defined. They belong to the branch, with their closures."""
    own: list[Program] = []
    outer = dict(memo)
    for number, (program, _, _) in enumerate(waiting.frames):
        function = program.function
        if number and not program.is_definition and outer.get(id(function)) is not function:
            own.append(program)
        else:
            outer |= program.outer_objects()
    return own


def shared_objects(program: Program, variables: Mapping[str, Any]) -> list[Any]:
    """Return the values of `Shared` variables, including those that the agent does not read again: what it awaits may
    refer to them."""
    kept = {**variables.get(HELD, {}), **variables}
    return [contents(kept[name]) for name in program.shared & kept.keys()]


def contents(value: Any) -> Any:
    """Return the value of a variable of a state, which may be in a cell."""
    if type(value) is not CellType:
        return value
    try:
        return value.cell_contents
    except ValueError:
        return None


def _explain(program: Program, point: Point, name: str, value: Any, error: Exception) -> str:
    kind = type(value)
    what = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if name in program.hidden:
        fix = "; fix: loop over a list: `for ... in list(...)`"
        if "context manager" in program.hidden[name]:
            fix = "; fix: await outside of the `with`, or give the manager's class a `__fork__`"
    else:
        fix = (
            "; fix: create it before the run and use it as a global, annotate it "
            f"`{name}: Shared[...]` if branches may share it, give its class a `__fork__`, or `del {name}` "
            "before the await"
        )
    described = f"{program.describe(name)}, of type {what},"
    return _fork_failure(Frame(program, point, {}), described, error) + fix


def _fork_failure(frame: Frame, what: str, error: Exception) -> str:
    point = frame.point
    return (
        f"state {point.name!r} in line {point.line} of agent {frame.program.graph.agent!r} cannot be forked: "
        f"{what} cannot be copied ({error})"
    )
