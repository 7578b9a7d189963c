"""The oracle: Python's own coroutines say what a compiled agent must do."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import linecache
import traceback
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from types import FunctionType
from typing import Any

from hive_frontend import (
    Agent,
    Decision,
    Drop,
    Fire,
    Once,
    Request,
    Session,
    State,
    Supervisor,
    arun,
    gather,
    gen,
)
from hive_frontend.testing import ScriptedModel

_numbers = itertools.count()
LOG: list[Any] = []
"""What a program did, in order."""


def mark(value: Any) -> Any:
    """An effect: shows when an expression is evaluated."""
    LOG.append(("mark", repr(value)))
    return value


def number(text: str) -> int:
    """An effect, too, and the usual way from an answer to a value."""
    LOG.append(("number", str(text)))
    return int(text)


def define(source: str, name: str = "program") -> FunctionType:
    """The function `name` of a module with this source, whose lines tracebacks can show."""
    filename = f"<program {next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"gen": gen, "gather": gather, "mark": mark, "number": number}
    exec(compile(source, filename, "exec"), namespace)
    function = namespace[name]
    assert isinstance(function, FunctionType)
    return function


def answer(request: Request) -> str:
    """A digit that depends on the prompt alone, so that resamples of a state go the same way."""
    LOG.append(("call", request.text))
    digest = blake2b(request.text.encode(), digest_size=2).digest()
    return str(int.from_bytes(digest, "big") % 7)


@dataclass(frozen=True)
class Behaviour:
    """Everything about a run that the two ways of running must agree on."""

    outcome: str
    requests: tuple[tuple[Any, ...], ...]
    effects: tuple[Any, ...]


class Siblings(Supervisor):
    """Fires every state of the main line twice; the second branch takes one step and is given up.

    The siblings do to their copies what the main line does to its own: whatever they share shows.
    """

    def __init__(self) -> None:
        self._new: list[State] = []

    def init(self, states: Sequence[State]) -> None:
        self._new.extend(states)

    def commit(self, state: State) -> None:
        self._new.append(state)

    def fire(self) -> Iterable[Decision]:
        new, self._new = self._new, []
        return [
            Drop(state) if any(state.path[1:]) else Fire(state, times=2)
            for state in new
            if state.kind == "waiting"
        ]


def behave_natively(program: Agent[..., Any], *args: Any) -> Behaviour:
    """What Python makes of the program."""

    async def run(model: ScriptedModel) -> Any:
        async with Session(model, seed=7):
            return await program(*args)

    return _observed(program, run)


def behave_compiled(program: Agent[..., Any], *args: Any, supervisor: Supervisor | None = None) -> Behaviour:
    """What the compiler makes of it."""

    async def run(model: ScriptedModel) -> Any:
        result = await arun(program, *args, model=model, seed=7, supervisor=supervisor or Once())
        main = [found for found in result.results if not any(map(int, found.state.split(".")[1:]))]
        return main[0].value

    return _observed(program, run, main_line=supervisor is not None)


def _observed(program: Agent[..., Any], run: Any, *, main_line: bool = False) -> Behaviour:
    model = ScriptedModel(answer)
    LOG.clear()

    async def bounded() -> str:
        work: Awaitable[Any] = run(model)
        try:
            return repr(await work)
        except Exception as error:
            return _explain(error, inspect.unwrap(program).__code__.co_filename)

    outcome = asyncio.run(bounded())
    calls = [call for call in model.calls if not main_line or _is_main(call)]
    requests = tuple(
        (call.text, call.state, call.sample, call.seed, call.agent, call.name, call.sampling)
        for call in calls
    )
    return Behaviour(outcome, requests, () if main_line else tuple(LOG))


def _is_main(call: Request) -> bool:
    path = call.state.split("/")[0].split(".")[1:]
    return not any(map(int, path)) and call.sample == 0


def _explain(error: Exception, filename: str) -> str:
    """Type and message of an exception, and the lines of the program that its traceback shows."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(frame.name, frame.lineno) for frame in frames if frame.filename == filename]
    return f"{type(error).__name__}: {error} at {lines}"


def assert_agree(function: FunctionType, *args: Any) -> Behaviour:
    """Compare all ways of running a program; returns what they agree on."""
    program: Agent[..., Any] = Agent(function)
    native = behave_natively(program, *args)
    compiled = behave_compiled(program, *args)
    assert compiled == native
    forked = behave_compiled(program, *args, supervisor=Siblings())
    assert (forked.outcome, forked.requests) == (native.outcome, native.requests)
    return native
