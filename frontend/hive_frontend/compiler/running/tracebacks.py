"""Tracebacks as a native run would show them."""

from __future__ import annotations

from types import TracebackType

_PACKAGE = __name__.partition(".")[0]


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
