"""Threads for blocking tools. Their number is limited, and a thread that hangs blocks nothing."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager, suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

R = TypeVar("R")

Limit = Callable[[], AbstractAsyncContextManager[None]]
"""Limits the time of its block."""

_MAX_CONCURRENT = min(32, (os.cpu_count() or 1) + 4)


class Connection(Protocol):
    """Something that tools keep open."""

    async def aclose(self) -> None: ...


class ToolThreads:
    """The threads of a session, and what its tools keep open.

    The event loop's executor and `concurrent.futures` are not used: the loop waits for its threads when it closes, and
    Python waits for the others when it exits, so one tool that hangs would block both. At most `count` calls run at
    the same time; a call that timed out no longer counts, though its thread keeps running.
    """

    def __init__(self, count: int = _MAX_CONCURRENT) -> None:
        self._turns = asyncio.Semaphore(count)
        self._idle: list[_Thread] = []
        self.connections: dict[Hashable, Connection] = {}
        """What tools keep open until the end of the session, by what it is a connection to."""

    async def call(self, function: Callable[[], R], limit: Limit) -> R:
        """Call a function when a thread is free; `limit` bounds the call, but not the wait for a thread."""
        async with self._turns:
            thread = self._idle.pop() if self._idle else _Thread()
            answer = thread.begin(function)
            try:
                async with limit():
                    return await answer
            finally:
                if answer.cancelled():
                    thread.end()
                else:
                    self._idle.append(thread)

    async def aclose(self) -> None:
        """End the idle threads and the connections."""
        for thread in self._idle:
            thread.end()
        self._idle.clear()
        await asyncio.gather(*(each.aclose() for each in self.connections.values()), return_exceptions=True)


class _Thread:
    """A thread that makes one call after the other."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="hive-tool", daemon=True).start()

    def begin(self, function: Callable[[], R]) -> asyncio.Future[R]:
        """Call a function in the thread; the future gets its result or exception."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        context = contextvars.copy_context()

        def settle(settled: Callable[[Any], None], outcome: Any) -> None:
            if not answer.done():
                settled(outcome)

        def work() -> None:
            try:
                settled: Callable[[Any], None] = answer.set_result
                outcome: Any = context.run(function)
            except BaseException as error:
                settled, outcome = answer.set_exception, error
            # Raised if the event loop has been closed: then the result is not needed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, settled, outcome)

        self._work.put(work)
        return answer

    def end(self) -> None:
        """End the thread after its current call."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work
