"""Exceptions across suspensions: those that states carry, and those that an await raises.

A state carries an exception that an `except` is handling, or that waits for the end of a `finally`.

A segment that resumes inside `except` or `finally` raises the exception again and catches it. `raise`,
`sys.exception()` and the context of new exceptions then behave as if the function had not been suspended.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any

_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Handled:
    """An exception, with its attributes that raising it again would change."""

    error: BaseException
    traceback: TracebackType | None
    context: BaseException | None

    def __fork__(self, memo: dict[int, Any]) -> Handled:
        # Branches share exceptions. `restore` undoes what other branches added to them.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # The frames of a traceback exist in one process only.
        return Handled, (self.error, None, self.context)


def as_carried(error: BaseException) -> Handled:
    """Return `error` with its current traceback and context."""
    return Handled(error, error.__traceback__, error.__context__)


def handled() -> Handled:
    """Return the exception that the calling code is handling."""
    error = sys.exception()
    assert error is not None
    return as_carried(error)


def saved(carried: Any) -> Any:
    """Return a carried value for the next state; of an exception, with its current traceback and context."""
    return as_carried(carried.error) if type(carried) is Handled else carried


def reraise(carried: Any) -> None:
    """Raise a carried value if it is an exception."""
    if type(carried) is Handled:
        raise carried.error


def restore(carried: Any) -> None:
    """Restore the traceback and context that `reraise` changed."""
    if type(carried) is Handled:
        carried.error.__traceback__ = carried.traceback
        carried.error.__context__ = carried.context


def join_contexts(answer: Handled) -> None:
    """Set the context of an exception that an await raised while another exception was being handled.

    The handled exception becomes the context at the end of the raised exception's own chain of contexts. A plain
    `raise` would replace that chain.
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


def strip_own_frames(error: BaseException) -> None:
    """Drop Hive's own frames from the start of the traceback of `error`.

    An exception from a helper or a tool passes through the runtime before it reaches the await.
    """
    traceback = error.__traceback__
    while traceback is not None and _is_own(traceback):
        traceback = traceback.tb_next
    if traceback is not None:
        error.__traceback__ = traceback


def _is_own(traceback: TracebackType) -> bool:
    module = traceback.tb_frame.f_globals.get("__name__")
    return isinstance(module, str) and module.partition(".")[0] == _PACKAGE
