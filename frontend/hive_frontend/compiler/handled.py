"""Exceptions that a state carries: one that it is handling, or one that waits for a `finally` to end.

A function that goes on inside `except` or `finally` raises the exception again, catches it, and so is where
it was: `raise`, `sys.exception()` and the context of new exceptions are as if it had never been left.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True)
class Handled:
    """An exception, and what raising it again would change about it."""

    error: BaseException
    traceback: TracebackType | None
    context: BaseException | None

    def __fork__(self, memo: dict[int, Any]) -> Handled:
        # Branches share exceptions; none of them sees what the others add, because it is set back.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # The frames of a traceback exist in one process only.
        return Handled, (self.error, None, self.context)


def _handled(error: BaseException) -> Handled:
    return Handled(error, error.__traceback__, error.__context__)


def handled() -> Handled:
    """The exception that the calling code is handling."""
    error = sys.exception()
    assert error is not None
    return _handled(error)


def at_rest(carried: Any) -> Any:
    """What a state carries, as it is when the state is left."""
    return _handled(carried.error) if type(carried) is Handled else carried


def raise_again(carried: Any) -> None:
    """Raise what a state carries, if it is an exception."""
    if type(carried) is Handled:
        raise carried.error


def restore(carried: Any) -> None:
    """Undo what `raise_again` changed about the exception."""
    if type(carried) is Handled:
        carried.error.__traceback__ = carried.traceback
        carried.error.__context__ = carried.context
