"""Exceptions that enter a function again: those that its states carry, and those that an await raises.

A state carries an exception that it is handling, or one that waits for a `finally` to end.

A function that goes on inside `except` or `finally` raises the exception again, catches it, and so is where
it was: `raise`, `sys.exception()` and the context of new exceptions are as if it had never been left.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any

_PACKAGE = __name__.partition(".")[0]


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


def as_carried(error: BaseException) -> Handled:
    """`error` as it is now."""
    return Handled(error, error.__traceback__, error.__context__)


def handled() -> Handled:
    """The exception that the calling code is handling."""
    error = sys.exception()
    assert error is not None
    return as_carried(error)


def at_rest(carried: Any) -> Any:
    """What a state carries, as it is when the state is left."""
    return as_carried(carried.error) if type(carried) is Handled else carried


def raise_again(carried: Any) -> None:
    """Raise what a state carries, if it is an exception."""
    if type(carried) is Handled:
        raise carried.error


def restore(carried: Any) -> None:
    """Undo what `raise_again` changed about the exception."""
    if type(carried) is Handled:
        carried.error.__traceback__ = carried.traceback
        carried.error.__context__ = carried.context


def join_contexts(answer: Handled) -> None:
    """Set the context of an exception that an await raised, while another was being handled.

    What the exception came from has come from what was being handled, in turn. `raise` knows one of the two.
    """
    error, known = answer.error, answer.context
    handled_here = error.__context__
    if known is None or known is handled_here:
        return
    error.__context__ = known
    seen: set[int] = {id(error)}
    while known.__context__ is not None and id(known) not in seen and known is not handled_here:
        seen.add(id(known))
        known = known.__context__
    if known.__context__ is None and known is not handled_here:
        known.__context__ = handled_here


def without_own_frames(error: BaseException) -> None:
    """Drop the frames of Hive's own that stand before those of the code that raised `error`.

    What a helper or a tool raises came through the runtime on its way to the await.
    """
    traceback = error.__traceback__
    while traceback is not None and _is_own(traceback):
        traceback = traceback.tb_next
    if traceback is not None:
        error.__traceback__ = traceback


def _is_own(traceback: TracebackType) -> bool:
    module = traceback.tb_frame.f_globals.get("__name__")
    return isinstance(module, str) and module.partition(".")[0] == _PACKAGE
