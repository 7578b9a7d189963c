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
    """The mean duration of each tool function, over all runs of the process; calls shorter than `SHORT_S` are not
    counted."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], tuple[int, float]] = {}

    def mean(self, function: Callable[..., Any]) -> float | None:
        """Return the mean duration of earlier calls in seconds; None if there were none."""
        known = self._totals.get(_name(function))
        return None if known is None else known[1] / known[0]

    def add(self, function: Callable[..., Any], seconds: float) -> None:
        """Note how long a call took."""
        if seconds < SHORT_S:
            return
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


class Wait:
    """A call of a tool function, as a context."""

    __slots__ = ("_waits", "event", "function", "started")

    def __init__(self, waits: Waits, function: Callable[..., Any], event: Event) -> None:
        self._waits = waits
        self.function = function
        self.event = event

    def __enter__(self) -> None:
        self.started = self._waits.began(self)

    def __exit__(self, *_: object) -> None:
        self._waits.ended(self)


class Waits:
    """Calls `hint` when a session has had no model call in flight for `SHORT_S` seconds and waits for tools, or for
    people through them."""

    def __init__(self, hint: Callable[[Expects], None]) -> None:
        self._hint = hint
        self._calls = 0
        """Model calls in flight."""
        self._tools: dict[Wait, None] = {}
        self._changed = 0.0
        """When a tool began or the last model call ended, in the event loop's time."""
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
                self._change()

    def began(self, wait: Wait) -> float:
        """Note that a tool runs; return the time."""
        self._tools[wait] = None
        return self._change()

    def ended(self, wait: Wait) -> None:
        """Note that a tool has ended."""
        del self._tools[wait]
        tool_times.add(wait.function, asyncio.get_running_loop().time() - wait.started)

    def close(self) -> None:
        """Give no more hints."""
        if self._timer is not None:
            self._timer.cancel()

    def _change(self) -> float:
        loop = asyncio.get_running_loop()
        self._changed = loop.time()
        # A timer that is under way looks again later: most tools are short, and a timer for each would cost more.
        if self._timer is None:
            self._timer = loop.call_later(SHORT_S, self._look)
        return self._changed

    def _look(self) -> None:
        """Give a hint if the session has waited for a while."""
        self._timer = None
        if self._calls or not self._tools:
            return
        loop = asyncio.get_running_loop()
        if (left := self._changed + SHORT_S - loop.time()) > 0:
            self._timer = loop.call_later(left, self._look)
            return
        event: Event = "human" if all(wait.event == "human" for wait in self._tools) else "tool"
        expects: Expects = {"event": event}
        means = [(tool_times.mean(wait.function), wait.started) for wait in self._tools]
        ends = [started + mean for mean, started in means if mean is not None]
        if len(ends) == len(means) and (seconds := min(ends) - loop.time()) > 0:
            expects["seconds"] = round(seconds, 3)
        self._hint(expects)
