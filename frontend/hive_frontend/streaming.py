"""Streaming: the text that models write in a run, as an async iterator."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from hive_frontend.agents import Agent
from hive_frontend.errors import HiveError
from hive_frontend.runtime import RunSettings, arun, started_by
from hive_frontend.search.events import Piece
from hive_frontend.search.run import Run
from hive_frontend.search.run_result import RunResult

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
X = TypeVar("X")
Ts = TypeVarTuple("Ts")


class Stream(Generic[R]):
    """A run whose text can be read while models write it.

        async with stream(solve, puzzle, model=url) as live:
            async for piece in live:                     # or: live.of(dialogue="critic")
                print(piece.state, piece.text)
        print(live.result.value)

    Each `Piece` names its branch. Leaving the block early cancels the run and its requests at the server.
    """

    def __init__(self, agent: Agent[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._pieces = _Pieces()
        self._work = functools.partial(arun, agent, *args, on_piece=self._pieces.add, **kwargs)
        self._started: Run | None = None
        self._stopped = False
        self._run: asyncio.Task[RunResult[R]] | None = None
        self._outcome_raised = False
        """Whether an iterator has reached the end of the run, and so has raised its error, if any."""

    async def __aenter__(self) -> Stream[R]:
        self._run = asyncio.create_task(started_by(self._work(), self._begun))
        self._run.add_done_callback(lambda _: self._pieces.wake())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._run is not None
        if not self._run.done():
            self._run.cancel()
            await asyncio.wait([self._run])
        failure = None if self._run.cancelled() else self._run.exception()
        if failure is not None and error is None and not self._outcome_raised:
            # An error must not be lost if the text was not read to the end.
            raise failure

    def stop(self) -> None:
        """End the run now: the text ends, and `result` has what the run has found so far."""
        self._stopped = True
        if self._started is not None:
            self._started.stop()

    def _begun(self, run: Run) -> None:
        self._started = run
        if self._stopped:
            run.stop()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self.of()

    async def of(
        self, *, dialogue: str | None = None, state: str | None = None, agent: str | None = None
    ) -> AsyncIterator[Piece]:
        """Iterate over the pieces of one dialogue (by its label), one branch (by the id of its state), or one agent.

        Every iterator begins with the first piece of the run, so several can follow different dialogues.
        """
        if self._run is None:
            raise HiveError(
                "the stream has not been started: use it in a block, async with stream(...) as live:"
            )
        position = 0
        while True:
            while position < len(self._pieces.all):
                piece = self._pieces.all[position]
                position += 1
                if (
                    dialogue in (None, piece.dialogue)
                    and state in (None, piece.state)
                    and agent in (None, piece.agent)
                ):
                    yield piece
            if self._run.done():
                # Raises the error of the run, if there is one, to the reader of its text.
                self._outcome_raised = True
                self._run.result()
                return
            await self._pieces.wait()

    @property
    def result(self) -> RunResult[R]:
        """The result of the run, once the text has ended."""
        if self._run is None or not self._run.done() or self._run.cancelled():
            raise HiveError("the run has no result yet: iterate over its text to the end first")
        return self._run.result()


class _Pieces:
    """All pieces so far, and the event that wakes readers that wait for more."""

    def __init__(self) -> None:
        self.all: list[Piece] = []
        self._more = asyncio.Event()

    def add(self, piece: Piece) -> None:
        self.all.append(piece)
        self.wake()

    def wake(self) -> None:
        more, self._more = self._more, asyncio.Event()
        more.set()

    async def wait(self) -> None:
        await self._more.wait()


@overload
def stream(agent: Agent[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Stream[R]: ...
@overload
def stream(
    agent: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **settings: Unpack[RunSettings]
) -> Stream[R]: ...
@overload
def stream(agent: Callable[Concatenate[X, ...], Awaitable[R]], /, **kwargs: Any) -> Stream[R]: ...
@overload
def stream(agent: Callable[Concatenate[A, X, ...], Awaitable[R]], a: A, /, **kwargs: Any) -> Stream[R]: ...
@overload
def stream(
    agent: Callable[Concatenate[A, B, X, ...], Awaitable[R]], a: A, b: B, /, **kwargs: Any
) -> Stream[R]: ...
def stream(agent: Any, /, *args: Any, **kwargs: Any) -> Stream[Any]:  # type: ignore[misc]
    """Run an agent, and stream its models' text; see `Stream`. Takes the arguments of `arun` except `on_piece`."""
    return Stream(agent, args, kwargs)
