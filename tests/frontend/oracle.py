"""The oracle: Python's own coroutines say what a compiled function must do.

Programs await `ask(...)`, an operation that is answered here, by a function of the question alone. Native
runs drive Python's coroutine, compiled ones a stack of programs, and both write down all that happens.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import linecache
import sys
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from hashlib import blake2b
from types import FunctionType
from typing import Any

from hive_frontend.compiler import (
    Invoke,
    Point,
    Program,
    Returned,
    Suspended,
    Thrown,
    Yield,
    process,
    program_of,
)
from hive_frontend.operation import Operation

_numbers = itertools.count()
LOG: list[Any] = []
"""What a program did, in order."""
_STEPS = 2000
"""No generated program takes more; a compiled one that does has lost its way."""


class Failed(Exception):
    """What some questions are answered with, and what programs raise."""


@dataclass(frozen=True)
class Ask(Operation[Any]):
    """A question, or several at once."""

    name = None
    texts: tuple[str, ...]
    alone: bool

    async def perform(self, transition: object) -> Any:
        raise AssertionError("the drivers of the oracle answer themselves")

    def __fork__(self, memo: dict[int, Any]) -> Ask:
        return self

    def __await__(self) -> Generator[Any, Any, Any]:
        reply = yield self
        if isinstance(reply, Thrown):
            raise reply.error
        return reply


def ask(text: object) -> Ask:
    return Ask((str(text),), alone=True)


def ask_all(*texts: object) -> Ask:
    return Ask(tuple(map(str, texts)), alone=False)


def mark(value: Any) -> Any:
    """An effect: shows when an expression is evaluated."""
    LOG.append(("mark", repr(value)))
    return value


def number(text: str) -> int:
    """An effect, too, and the usual way from an answer to a value."""
    LOG.append(("number", str(text)))
    return int(text)


def spelled(error: BaseException | None) -> str:
    """An exception in words, the same in all versions of Python.

    Before Python 3.12, comprehensions were functions of their own, to which the variables around them were
    free ones.
    """
    if isinstance(error, NameError):
        return f"NameError({str(error).split(chr(39))[1]})"
    return repr(error)


def lines_of(trace: Any, filename: str) -> list[tuple[str, int | None]]:
    """Functions and lines in a traceback, as far as they are in files whose names begin so.

    Without the frames that comprehensions have before Python 3.12.
    """
    return [
        (frame.name, frame.lineno)
        for frame in traceback.extract_tb(trace)
        if frame.filename.startswith(filename) and not frame.name.endswith("comp>")
    ]


def handled() -> str:
    """What is being handled, and what was being handled when that was raised."""
    error, found = sys.exception(), []
    while error is not None:
        found.append(spelled(error))
        error = error.__context__
    return " in ".join(found)


class Manager:
    """A context manager that shows what it is told; it may suppress exceptions, or raise some itself."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> int:
        LOG.append(("enter", self.number))
        if self.number % 7 == 6:
            raise Failed("entering")
        return self.number

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        lines = [line for _, line in lines_of(trace, "<program ")]
        LOG.append(("exit", self.number, spelled(error), handled(), lines))
        if self.number % 5 == 4:
            raise Failed("leaving")
        return self.number % 3 == 0


class Resource:
    """Something that is there as long as somebody holds it: its box is emptied with it."""

    def __init__(self) -> None:
        self.box = [1]

    def __del__(self) -> None:
        self.box.clear()


TICKS = [0]
"""State of a module: of its runs, a program's own ones count."""


def _make_tick(ticks: list[int]) -> Callable[[], int]:
    def tick() -> int:
        ticks[0] += 1
        return ticks[0]

    return tick


tick = _make_tick(TICKS)


def define(source: str, name: str = "program", **names: Any) -> FunctionType:
    """The function `name` of a module with this source, whose lines tracebacks can show."""
    filename = f"<program {next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {
        "__name__": "programs",
        "ask": ask,
        "ask_all": ask_all,
        "mark": mark,
        "number": number,
        "handled": handled,
        "Failed": Failed,
        "Manager": Manager,
        "Resource": Resource,
        "tick": tick,
        **names,
    }
    exec(compile(source, filename, "exec"), namespace)
    function = namespace[name]
    assert isinstance(function, FunctionType)
    return function


def answer(operation: Any) -> Any:
    """Digits that depend on the question alone, so that all branches go the same way; or `Failed`."""
    if isinstance(operation, Ask):
        LOG.append(("ask", operation.texts))
        answers = [_answer(text) for text in operation.texts]
        return answers[0] if operation.alone else answers
    LOG.append(("yield", repr(operation)))
    return _answer(repr(operation))


def _answer(text: str) -> str:
    digest = int.from_bytes(blake2b(text.encode(), digest_size=2).digest(), "big")
    if digest % 11 == 10:
        raise Failed(f"no answer to {text}")
    return str(digest % 7)


def _reply(operation: Any) -> Any:
    """The answer, as a program takes it."""
    try:
        return answer(operation)
    except Failed as error:
        return Thrown(error.with_traceback(None))


# Native runs


def behave_natively(function: FunctionType, *args: Any, **kwargs: Any) -> Behaviour:
    """What Python makes of the function."""

    def run() -> Any:
        called = function(*args, **kwargs)
        return _drive_generator(called) if inspect.isasyncgenfunction(function) else _drive(called)

    return _observed(function, run)


def _drive(coroutine: Any) -> Any:
    reply = None
    while True:
        try:
            operation = coroutine.send(reply)
        except StopIteration as stop:
            return stop.value
        reply = _reply(operation)


def _drive_generator(generator: Any) -> None:
    turn = generator.asend(None)
    while True:
        try:
            value = _drive(turn)
        except StopAsyncIteration:
            return
        reply = _reply(value)
        turn = generator.athrow(reply.error) if isinstance(reply, Thrown) else generator.asend(reply)


# Compiled runs


@dataclass(frozen=True)
class Branch:
    """A suspended run: its functions, the innermost last, and what it waits for."""

    frames: tuple[tuple[Program, Point, dict[str, Any]], ...]
    operation: Any

    def fork(self) -> Branch:
        frames = tuple(process.Frame(*frame) for frame in self.frames)
        forked = process.fork_branch(process.Waiting(frames, self.operation), {})
        return Branch(forked.frames, forked.operation)


def behave_compiled(function: FunctionType, *args: Any, forking: bool = False, **kwargs: Any) -> Behaviour:
    """What the compiler makes of it.

    With `forking`, a sibling takes each step before the main line does, with data of its own: whatever the
    two share shows. The copy and the original take turns in being the main line.
    """

    def run() -> Any:
        program = program_of(function)
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        state = _advance((), program, None, bound.arguments, None)
        for step in range(_STEPS):
            if isinstance(state, Returned):
                return state.value
            sibling: Branch | None = None
            if forking:
                sibling = state.fork()
                if step % 2:
                    state, sibling = sibling, state
            operation = state.operation
            reply = _reply(operation.value if isinstance(operation, Yield) else operation)
            if sibling is not None:
                _take_step(sibling, reply)
            state = _resume(state, reply)
        raise AssertionError("the program does not end")

    return _observed(function, run)


def _take_step(sibling: Branch, reply: Any) -> None:
    """One step of a branch that is then given up, unnoticed."""
    done, ticks = len(LOG), TICKS[0]
    if isinstance(reply, Thrown):
        reply = Thrown(type(reply.error)(*reply.error.args))
    with contextlib.suppress(Exception):
        _resume(sibling, reply)
    del LOG[done:]
    TICKS[0] = ticks


def _resume(branch: Branch, reply: Any) -> Branch | Returned:
    *callers, (program, point, variables) = branch.frames
    return _advance(tuple(callers), program, point, variables, reply)


def _advance(callers: Any, program: Program, point: Point | None, variables: Any, reply: Any) -> Any:
    while True:
        try:
            outcome = program.start(variables) if point is None else program.resume(point, variables, reply)
        except BaseException as error:
            if not callers:
                raise
            (*callers, (program, point, variables)), reply = callers, Thrown(error)
            continue
        if isinstance(outcome, Suspended):
            callers = (*callers, (program, outcome.point, outcome.variables))
            if not isinstance(outcome.operation, Invoke):
                return Branch(callers, outcome.operation)
            program, point = program_of(outcome.operation.function), None
            variables = outcome.operation.arguments
        elif callers:
            (*callers, (program, point, variables)), reply = callers, outcome.value
        else:
            return outcome


# What they do


@dataclass(frozen=True)
class Behaviour:
    """Everything about a run that the two ways of running must agree on."""

    outcome: str
    effects: tuple[Any, ...]


def _observed(function: FunctionType, run: Callable[[], Any]) -> Behaviour:
    LOG.clear()
    TICKS[0] = 0
    try:
        outcome = repr(run())
    except Exception as error:
        outcome = _explain(error, function.__code__.co_filename)
    return Behaviour(outcome, tuple(LOG))


def _explain(error: BaseException, filename: str) -> str:
    """Type and message of an exception, the lines of the program in its traceback, and where it came from."""
    text = f"{spelled(error)} at {lines_of(error.__traceback__, filename)}"
    if error.__cause__ is not None:
        text += f" caused by ({_explain(error.__cause__, filename)})"
    if error.__context__ is not None:
        text += f" while handling ({_explain(error.__context__, filename)})"
    return text


def assert_agree(function: FunctionType, *args: Any, **kwargs: Any) -> Behaviour:
    """Compare all ways of running a function; returns what they agree on."""
    native = behave_natively(function, *args, **kwargs)
    assert behave_compiled(function, *args, **kwargs) == native
    assert behave_compiled(function, *args, forking=True, **kwargs) == native
    return native
