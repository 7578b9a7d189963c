"""A branch of an agent as data: the stack of its suspended functions, and how it goes on.

An agent calls `async def` helpers, which are compiled like it; where one of them awaits, the branch consists
of several suspended functions, the innermost last.
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
from hive_frontend.errors import ForkError, HiveError
from hive_frontend.operation import (
    SCOPES_WITH_OPERATIONS,
    Operation,
    Scope,
    current_environment,
    never_awaited,
)
from hive_frontend.operations import fork

_DEEP = 1_000_000
"""Nested calls in which data is copied that is too deep for the usual limit."""

_warned: WeakSet[CodeType] = WeakSet()
"""Functions that were warned of already."""


class Frame(NamedTuple):
    """A suspended function."""

    program: Program
    point: Point
    variables: dict[str, Any]


class Waiting(NamedTuple):
    """A suspended branch: what it waits for, and with what it goes on."""

    frames: tuple[Frame, ...]
    operation: Operation[Any] | Yield
    context: Context | None = None
    """Context variables, if the branch has set any."""

    @property
    def point(self) -> Point:
        """Where it waits."""
        return self.frames[-1].point

    def __fork__(self, memo: fork.Memo) -> Waiting:
        return fork_branch(self, memo)


@dataclass(frozen=True, slots=True)
class Ended:
    """A branch that has come to its end."""

    value: Any


def start(program: Program, arguments: Mapping[str, Any]) -> Waiting | Ended:
    """Run an agent from its beginning to where it awaits something, or to its end."""
    return _run([], program, None, arguments, None)


def resume(waiting: Waiting, answer: Any) -> Waiting | Ended:
    """Run a branch from the answer to what it waited for; `Thrown` makes the `await` raise.

    The branch is used up: what it goes on with are the variables themselves.
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
    """Run a function from `point`, or from its beginning with `variables` as its arguments.

    Calls of helpers, returns from them and exceptions out of them are followed at once; `stack` holds the
    callers.
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
    """Warn of calls that the code from `point` on, or from the beginning, has made and dropped."""
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
        message = f"{program.name}: {operation!r} never happens: write `await` before the call"
        warnings.warn_explicit(message, RuntimeWarning, code.co_filename, line)


def warn_of_exits(waiting: Waiting) -> None:
    """Warn, once for each agent, that a branch is given up inside a `with` or `try` whose end never runs."""
    for program, point, _ in waiting.frames:
        code = program.function.__code__
        if point.guarded and code not in _warned:
            _warned.add(code)
            warnings.warn_explicit(
                f"{program.name}: a branch is given up inside a `with` or `try`, whose `__exit__` or `finally` "
                "does not run: let the data itself clean up, as a Workspace does, or await outside of it",
                RuntimeWarning,
                code.co_filename,
                point.line,
            )


def _helper(call: Invoke) -> Program:
    program = program_of(call.function)
    if program.is_generator:
        raise HiveError(
            f"{call.function.__qualname__} is an async generator: make it an @agent and spawn it, then await "
            "its next()"
        )
    return program


def fork_branch(waiting: Waiting, memo: fork.Memo) -> Waiting:
    """A copy of a suspended branch for one branch of several, under one memo: what was the same object in
    two places is so in the copy. `ForkError` names what cannot be copied."""
    outermost = not memo
    try:
        return _fork_branch(waiting, memo)
    except RecursionError:
        if not outermost:
            raise
    # Data as deep as a long linked list. Copying it takes no stack of the processor's.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEP))
    try:
        memo.clear()
        return _fork_branch(waiting, memo)
    except RecursionError as error:
        raise ForkError(_complaint(waiting.frames[-1], "what it carries", error)) from error
    finally:
        sys.setrecursionlimit(limit)


def _fork_branch(waiting: Waiting, memo: fork.Memo) -> Waiting:
    # A search forks at every firing, so that each look-up here counts.
    suspended, awaited, context = waiting.frames, waiting.operation, waiting.context
    own = _own_helpers(waiting, memo) if len(suspended) > 1 else None
    for program, _, variables in suspended:
        if outer := program.outer_objects(closure=not own or program not in own):
            memo.update(outer)
        if program.shared:
            for name in program.shared & variables.keys():
                shared = contents(variables[name])
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
    # It is in the memo if a variable refers to it.
    operation = memo.get(id(awaited))
    try:
        if operation is None:
            operation = fork.copy(awaited, memo) if isinstance(awaited, Yield) else awaited.__fork__(memo)
    except RecursionError:
        raise
    except Exception as error:
        what = f"what is awaited there, of type {type(awaited).__name__}"
        raise ForkError(_complaint(suspended[-1], what, error)) from error
    return Waiting(tuple(frames), operation, context if context is None else context.copy())


def _own_helpers(waiting: Waiting, memo: fork.Memo) -> list[Program]:
    """Those of the running helpers that the agent itself defined: they belong to the branch, with the variables
    that they refer to."""
    own: list[Program] = []
    outer = dict(memo)
    for number, (program, _, _) in enumerate(waiting.frames):
        function = program.function
        if number and not program.is_definition and outer.get(id(function)) is not function:
            own.append(program)
        else:
            outer |= program.outer_objects()
    return own


def contents(value: Any) -> Any:
    """What a variable of a state is, be it in a cell or not."""
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
            fix = "; fix: await outside the `with`, or make the manager's class forkable with `__fork__`"
    else:
        fix = (
            "; fix: make it before the run and let the agent use it as a global, annotate it "
            f"`{name}: Shared[...]` if branches can share it, give its class a `__fork__`, or del {name} "
            "before the await"
        )
    described = f"{program.describe(name)}, of type {what},"
    return _complaint(Frame(program, point, {}), described, error) + fix


def _complaint(frame: Frame, what: str, error: Exception) -> str:
    point = frame.point
    return (
        f"state {point.name!r} in line {point.line} of agent {frame.program.graph.agent!r} cannot be forked: "
        f"{what} cannot be copied ({error})"
    )
