"""Threads for tools that block: bounded in number, and nobody ever waits for one that is stuck."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")

Limit = Callable[[], AbstractAsyncContextManager[None]]
"""Bounds the time of what is done in its block."""

_AT_ONCE = min(32, (os.cpu_count() or 1) + 4)


class ToolThreads:
    """The threads of a session.

    They are not those of the event loop, or of `concurrent.futures`: the loop waits for its threads when it is
    closed, and Python for the others when it exits, so that one tool that hangs would hold up both. `count` calls
    run at once; one that was given up counts no more, though its thread runs on.
    """

    def __init__(self, count: int = _AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(count)
        self._idle: list[_Thread] = []

    async def call(self, function: Callable[[], R], limit: Limit) -> R:
        """Call a function when it is its turn, and wait for it within `limit`, in which no other wait counts."""
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

    def close(self) -> None:
        """End the threads that have nothing to do."""
        for thread in self._idle:
            thread.end()
        self._idle.clear()


class _Thread:
    """One thread, which makes one call after the other."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="hive-tool", daemon=True).start()

    def begin(self, function: Callable[[], R]) -> asyncio.Future[R]:
        """Call a function here; what it returns or raises."""
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
            # Where the event loop has been closed nobody waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, settled, outcome)

        self._work.put(work)
        return answer

    def end(self) -> None:
        """End the thread, after what it does now."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work
