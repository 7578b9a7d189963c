"""A switch that forbids calls to real models, for tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hive_frontend.errors import HiveError

VARIABLE = "HIVE_FORBID_REAL_CALLS"


class RealCallForbidden(HiveError):
    """A program under test tried to call a real model."""


class _ActiveGuards:
    """Number of active `forbid_real_calls` blocks in the process, because programs under test may use threads."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()


_active_guards = _ActiveGuards()


@contextmanager
def forbid_real_calls() -> Iterator[None]:
    """Forbid all clients to send requests to servers within the block: they raise `RealCallForbidden`.

    To cover all tests of a suite, put this in `conftest.py`:

        @pytest.fixture(autouse=True)
        def no_real_calls():
            with forbid_real_calls():
                yield

    The environment variable `HIVE_FORBID_REAL_CALLS=1` does the same for a whole process.
    """
    with _active_guards.lock:
        _active_guards.count += 1
    try:
        yield
    finally:
        with _active_guards.lock:
            _active_guards.count -= 1


def check_allowed(what: str) -> None:
    """Raise `RealCallForbidden` if real calls are forbidden; `what` names the call in the error message."""
    if _active_guards.count:
        reason = "forbid_real_calls() is active"
    elif os.environ.get(VARIABLE, "") not in ("", "0"):
        reason = f"{VARIABLE} is set"
    else:
        return
    raise RealCallForbidden(
        f"{what}: real model calls are forbidden here, because {reason}; run with a model of "
        'hive.testing, such as run(..., model=ScriptedModel(["an answer"]))'
    )
