"""Hooks for the end of a server that has lost a process: one line that says why, and a status of its own.

SGLang kills itself with SIGKILL then, after a log of which the cause is any line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

CRASHED = 1
"""The launcher's exit status."""

LAST_WORDS_S = 1.0
"""A process that reports an error ends a moment later; then its status is known."""


def around_run_event_loop(original: Callable[..., None], self: Scheduler) -> None:
    """Say in one line what a scheduler failed of; SGLang logs the traceback and tells the launcher."""
    try:
        original(self)
    except Exception as error:
        said = " ".join(str(error).split())[:500]
        print(f"hive: a scheduler failed: {type(error).__name__}: {said}", file=sys.stderr, flush=True)
        raise


def running_phase_sigquit_handler(self: Any, signum: Any = None, frame: Any = None) -> None:
    """A child has failed, or has told so: end all the others, and say which it was."""
    from sglang.srt.utils import kill_process_tree

    manager = self.tokenizer_manager
    watchdog = manager._subprocess_watchdog
    cause = "a process of its own asked for it"
    if watchdog is not None:
        cause = cause_of(watchdog._processes, watchdog._names)
        watchdog.stop()
    manager.dump_requests_before_crash()
    kill_process_tree(os.getpid(), include_parent=False)
    print(f"hive: the server ends with status {CRASHED}: {cause}", file=sys.stderr, flush=True)
    # Nothing of what runs here may keep it: threads of uvicorn and of SGLang wait for a scheduler that is gone.
    os._exit(CRASHED)


def cause_of(processes: Any, names: Any) -> str:
    """Which of the processes failed, and how."""
    for seconds in (0.0, LAST_WORDS_S):
        for process, name in zip(processes, names, strict=True):
            process.join(seconds)
            status = process.exitcode
            if status is None or status == 0:
                continue
            how = f"was killed by {_signal(-status)}" if status < 0 else f"ended with status {status}"
            return f"{name} (process {process.pid}) {how}"
    # A scheduler that fails ends with status 0.
    return "a scheduler or the detokenizer failed; what it said of that is above"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
