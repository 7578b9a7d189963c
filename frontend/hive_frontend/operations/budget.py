"""Budgets: limits on what a run, or an agent within it, may spend."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hive_frontend.client.reply import Reply
from hive_frontend.errors import BudgetExceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on model calls, generated tokens and time; None for no limit.

    Everything that an agent calls or spawns also spends from its budget. The budget is checked before each model
    call, which raises `BudgetExceeded` if nothing is left. A model call or tool that is in progress when the
    `seconds` are over raises it, too. Concurrent calls, of which there are at most `max_concurrency`, may together
    exceed `tokens` by their answers. Replayed tokens are free.
    """

    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for field in ("tokens", "calls"):
            value = getattr(self, field)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ValueError(f"budget: {field} must be an integer of at least 0, not {value!r}")
        if self.seconds is not None and not 0 <= self.seconds < math.inf:
            raise ValueError(f"budget: seconds must be a number of at least 0, not {self.seconds!r}")


class Meter:
    """Counts what is spent of a budget, and of the budgets that enclose it."""

    __slots__ = ("_budget", "_calls", "_chain", "_deadline", "_owner", "_tokens")

    def __init__(self, budget: Budget, owner: str, around: Meter | None = None) -> None:
        self._budget = budget
        self._owner = owner
        # Limits are checked before every call, so all meters with limits are in one list.
        limited = budget != Budget()
        self._chain: list[Meter] = [*([self] if limited else ()), *(around._chain if around else ())]
        self._calls = 0
        self._tokens = 0
        self._deadline = math.inf if budget.seconds is None else time.monotonic() + budget.seconds

    def fork(self) -> Meter:
        """Return a copy of this meter with the same counts; enclosing budgets stay shared."""
        if self not in self._chain:
            return self
        fork = copy.copy(self)
        fork._chain = [fork, *self._chain[1:]]
        return fork

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return bool(self._chain)

    def check(self) -> None:
        """Raise `BudgetExceeded` if no further call is allowed."""
        for meter in self._chain:
            meter._check()

    def admit(self) -> None:
        """Count a call that is about to be made; `BudgetExceeded` if it is not allowed."""
        self.check()
        for meter in self._chain:
            meter._calls += 1

    def recall(self, reply: Reply) -> None:
        """Count a call that was made before the run was interrupted, and is resumed from a checkpoint."""
        for meter in self._chain:
            meter._calls += 1
        self.charge(reply)

    def charge(self, reply: Reply) -> None:
        """Count the tokens of an answer."""
        for meter in self._chain:
            meter._tokens += reply.tokens_generated

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first deadline; None if there is none."""
        deadline = min((meter._deadline for meter in self._chain), default=math.inf)
        return None if deadline == math.inf else max(0.0, deadline - time.monotonic())

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Limit the block to the seconds that are left; `BudgetExceeded` when they are over."""
        seconds = self.seconds_left
        if seconds == 0:
            raise self.out_of_time()
        try:
            async with asyncio.timeout(seconds) as deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self.out_of_time() from None

    def out_of_time(self) -> BudgetExceeded:
        """Return the error for passing the first deadline."""
        first = min(self._chain, key=lambda meter: meter._deadline)
        return BudgetExceeded(f"the budget of {first._owner} is spent: {first._budget.seconds:g} seconds")

    def _check(self) -> None:
        spent = None
        if self._budget.calls is not None and self._calls >= self._budget.calls:
            spent = f"{self._budget.calls} calls"
        elif self._budget.tokens is not None and self._tokens >= self._budget.tokens:
            spent = f"{self._budget.tokens} tokens"
        elif self._deadline <= time.monotonic():
            spent = f"{self._budget.seconds:g} seconds"
        if spent is not None:
            raise BudgetExceeded(f"the budget of {self._owner} is spent: {spent}")
