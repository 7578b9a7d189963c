"""The switch that keeps tests from calling real models."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hive_frontend.errors import HiveError

VARIABLE = "HIVE_FORBID_REAL_CALLS"


class RealCallForbidden(HiveError):
    """A program under test was about to call a real model."""


class _Forbidders:
    """How many `forbid_real_calls` are in force. Of the process: programs under test run in threads, too."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()


_forbidders = _Forbidders()


@contextmanager
def forbid_real_calls() -> Iterator[None]:
    """While the block runs, no client sends anything to a server: it raises `RealCallForbidden` instead.

    For all tests of a suite, in `conftest.py`:

        @pytest.fixture(autouse=True)
        def no_real_calls():
            with forbid_real_calls():
                yield

    The environment variable `HIVE_FORBID_REAL_CALLS=1` does the same for a whole process.
    """
    with _forbidders.lock:
        _forbidders.count += 1
    try:
        yield
    finally:
        with _forbidders.lock:
            _forbidders.count -= 1


def check_allowed(what: str) -> None:
    """`RealCallForbidden` if real calls are forbidden; `what` is the call, as a message shows it."""
    if _forbidders.count:
        reason = "forbid_real_calls() is in force"
    elif os.environ.get(VARIABLE, "") not in ("", "0"):
        reason = f"{VARIABLE} is set"
    else:
        return
    raise RealCallForbidden(
        f"{what}: real model calls are forbidden here, because {reason}; give the run a model of "
        'hive.testing, such as run(..., model=ScriptedModel(["an answer"]))'
    )
