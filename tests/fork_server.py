"""Servers that start in seconds: forked from a process that has imported everything they run.

Three quarters of a start are imports: the launcher, the scheduler and the detokenizer each load torch and SGLang. Here
one process loads them, with Hive's hooks, and every server is a fork of it; so are the processes of that server. From
``main`` on they run what ``python -m hive.launch_server`` runs.

As a program (``python -m tests.fork_server SOCKET``) this is that process. It ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import NamedTuple

from tests.repetitions import LONG

# Read when torch is loaded, which is before the launcher can set the first. Each server would compile what draws and
# what applies penalties when it is first used, for 20 to 70 s; before a release they do, as users' do.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "TORCH_COMPILE_DISABLE": "0" if LONG else "1"}


class Request(NamedTuple):
    """A server to start: as ``hive.server.server_process`` asks for one."""

    flags: Sequence[str]
    log: str
    environment: Mapping[str, str]


class ForkedProcess:
    """A server's launcher: what the callers of ``subprocess.Popen`` use of one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.pid: int = connection.recv()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, or minus the signal that ended it; None while it runs."""
        if self.returncode is None and self._connection.poll():
            try:
                self.returncode = self._connection.recv()
            except EOFError:
                # Its parent was killed with it.
                self.returncode = -signal.SIGKILL
            self._connection.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status.

        Raises:
            subprocess.TimeoutExpired: when it still runs after ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0.0)
            time.sleep(0.02)
        return status

    def terminate(self) -> None:
        """End it and its children at once: asked politely, a server takes five seconds to go."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class ForkServer:
    """The process that has imported everything."""

    def __init__(self, folder: Path) -> None:
        """Start it; it is ready when the first server is forked."""
        self._address = str(folder / "fork")
        self._log = folder / "fork.log"
        inherited = {**os.environ}
        # See hive.server.server_process.
        inherited.pop("PYTHONDONTWRITEBYTECODE", None)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", self._address],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[1],
                env={**inherited, **_ENVIRONMENT},
            )

    def start(self, flags: Sequence[str], log: Path, environment: Mapping[str, str]) -> ForkedProcess:
        """Fork a server.

        Raises:
            RuntimeError: when there is nothing to fork it from.
        """
        while True:
            try:
                connection = Client(self._address)
                break
            except OSError:
                if self._process.poll() is not None:
                    raise RuntimeError(f"the fork server ended:\n{self._log.read_text()}") from None
                time.sleep(0.05)
        connection.send(Request(tuple(flags), str(log), dict(environment)))
        return ForkedProcess(connection)

    def stop(self) -> None:
        """End it; servers that run go on."""
        self._process.communicate()


def _load() -> None:
    """Import what servers run, hooked as they have it: the flags of one are read later."""
    from hive import launch_server
    from hive.server.flags.server_args import HiveServerArgs

    HiveServerArgs().to_environment()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.data_parallel_controller
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry

    del launch_server, sglang


def _next() -> Request:
    """Wait for requests, and return each in a process of its own; never in this one, which ends instead."""
    listener = Listener(sys.argv[1])
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listener._listener._socket, selectors.EVENT_READ)  # type: ignore[attr-defined]
        while True:
            ready = [key.fd for key, _ in selector.select()]
            if 0 in ready:
                os._exit(0)
            connection = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    request = Request(*connection.recv())
    # This process waits for the server, and tells how it ended.
    if server := os.fork():
        connection.send(server)
        _, status = os.waitpid(server, 0)
        with contextlib.suppress(OSError):
            connection.send(os.waitstatus_to_exitcode(status))
        os._exit(0)
    return request


def _become(request: Request) -> None:
    """Turn this process into one that was started for the request."""
    os.setsid()
    log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    os.closerange(3, 256)
    os.environ.update(request.environment)
    random.seed()
    sys.argv = ["hive.launch_server", *request.flags]

    import multiprocessing

    from sglang.srt.environ import envs
    from sglang.srt.managers import scheduler

    # Read when they were imported.
    scheduler.TEST_RETRACT = envs.SGLANG_TEST_RETRACT.get()
    scheduler.TEST_RETRACT_INTERVAL = envs.SGLANG_TEST_RETRACT_INTERVAL.get()
    set_start_method = multiprocessing.set_start_method
    set_start_method("fork", force=True)
    # SGLang asks for "spawn", which imports everything again.
    multiprocessing.set_start_method = lambda *_, **__: None


if __name__ == "__main__":
    _load()
    _become(_next())
    from hive.launch_server import main

    main()
