"""Notices when a session only waits for its tools, and how long they usually take."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hive_frontend.wire import Event, Expects

SHORT_S = 0.05
"""Waits below this are not worth a hint, in seconds."""
_MAX_TOOLS = 1024


class ToolTimes:
    """The mean duration of each tool function, over all runs of the process."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], tuple[int, float]] = {}

    def mean(self, function: Callable[..., Any]) -> float | None:
        """Return the mean duration of earlier calls in seconds; None if there were none."""
        known = self._totals.get(_name(function))
        return None if known is None else known[1] / known[0]

    def add(self, function: Callable[..., Any], seconds: float) -> None:
        """Note how long a call took."""
        name = _name(function)
        # The one called longest ago is forgotten first.
        count, total = self._totals.pop(name, (0, 0.0))
        self._totals[name] = count + 1, total + seconds
        if len(self._totals) > _MAX_TOOLS:
            del self._totals[next(iter(self._totals))]


def _name(function: Callable[..., Any]) -> tuple[str, str]:
    while isinstance(function, functools.partial):
        function = function.func
    kind = type(function)
    return (
        getattr(function, "__module__", None) or kind.__module__,
        getattr(function, "__qualname__", kind.__qualname__),
    )


tool_times = ToolTimes()


class _Wait:
    """A tool that runs."""

    __slots__ = ("event", "mean", "started")

    def __init__(self, event: Event, mean: float | None, started: float) -> None:
        self.event = event
        self.mean = mean
        self.started = started

    @property
    def is_short(self) -> bool:
        """Whether it may end any moment, as long as it has not run for `SHORT_S` seconds."""
        return self.mean is None or self.mean < SHORT_S


class Waits:
    """Calls `hint` when a session has no model call in flight and waits for tools, or for people through them."""

    def __init__(self, hint: Callable[[Expects], None]) -> None:
        self._hint = hint
        self._calls = 0
        """Model calls in flight."""
        self._tools: dict[_Wait, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def call(self) -> Iterator[None]:
        """The block is a model call."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._tools and not self._calls:
                # The branch that got the answer usually makes its next call at once.
                self._look_in(SHORT_S)

    @contextmanager
    def tool(self, function: Callable[..., Any], event: Event) -> Iterator[None]:
        """The block is a call of a tool function, which waits for `event`."""
        loop = asyncio.get_running_loop()
        wait = _Wait(event, tool_times.mean(function), loop.time())
        self._tools[wait] = None
        self._look_in(SHORT_S if wait.is_short else 0.0)
        try:
            yield
        finally:
            del self._tools[wait]
            tool_times.add(function, loop.time() - wait.started)
            if not self._tools:
                self.close()

    def close(self) -> None:
        """Give no more hints about the tools that run now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is None or self._timer.when() > when:
            self.close()
            self._timer = loop.call_at(when, self._look)

    def _look(self) -> None:
        """Give a hint if the session waits, and will probably wait for a while."""
        self._timer = None
        if self._calls or not self._tools:
            return
        now = asyncio.get_running_loop().time()
        ages = {wait: now - wait.started for wait in self._tools}
        soon = [SHORT_S - age for wait, age in ages.items() if wait.is_short and age < SHORT_S]
        if soon:
            self._look_in(max(soon))
            return
        event: Event = "human" if all(wait.event == "human" for wait in ages) else "tool"
        expects: Expects = {"event": event}
        left = [None if wait.mean is None else wait.mean - age for wait, age in ages.items()]
        known = [seconds for seconds in left if seconds is not None and seconds > 0]
        if len(known) == len(left):
            expects["seconds"] = round(min(known), 3)
        self._hint(expects)
