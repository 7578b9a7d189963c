"""A Hive server as a child process: started, waited for, and stopped with everything it started."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

# Kills the server's process group when this process has gone without stop(): the end of its standard input says so.
_REAPER = 'read -r _ || kill -KILL "-$1"'

_KILLED_END_S = 5.0
"""The longest that killed processes are waited for."""

# http_proxy must not come between this process and a server on loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Process(Protocol):
    """What is used of ``subprocess.Popen``."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...


class ServerDied(RuntimeError):
    """The server ended, or did not answer in time; the message carries the end of its log."""


def free_port() -> int:
    """A loopback port that nobody uses at the moment.

    Taken from below the range that systems give to outgoing connections: a server binds its port only after a
    minute of start-up, by which time an outgoing connection may have been given one of that range.
    """
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _runner(module: str) -> Callable[[Sequence[str], Path, Mapping[str, str]], Process]:
    def run(flags: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> Process:
        inherited = {**os.environ}
        # Containers like to set it. Each of the three processes would then compile 7,000 modules at every start,
        # which takes longer than all the rest of it.
        inherited.pop("PYTHONDONTWRITEBYTECODE", None)
        with log_path.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**inherited, **environment},
            )

    return run


def slowdown() -> float:
    """How many processes want a core, for each that there is; 1 where there are enough."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class ServerProcess:
    """``python -m MODULE --host 127.0.0.1 --port PORT FLAGS`` in a process group of its own.

    The group ends with :meth:`stop`, at the latest when the process that made this object ends, however it ends.
    """

    def __init__(
        self,
        flags: Sequence[str],
        log_path: Path,
        *,
        module: str = "hive.launch_server",
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        start: Callable[[Sequence[str], Path, Mapping[str, str]], Process] | None = None,
    ) -> None:
        """Start it.

        Args:
            flags: of the module.
            log_path: where the server's output goes.
            module: what is run.
            environment: variables beside those of this process.
            port: that of a server that has gone, for one that takes its place; otherwise a free one.
            start: another way to start a process with these flags, this output and these variables, which leads a
                group of its own.
        """
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = log_path
        flags = ["--host", "127.0.0.1", "--port", str(self.port), *flags]
        self.process = (start or _runner(module))(flags, log_path, environment or {})
        self._reaper = subprocess.Popen(
            ["sh", "-c", _REAPER, "reaper", str(self.process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def log(self, lines: int = 30) -> str:
        """The last lines of the server's output."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def healthy(self) -> bool:
        """Whether ``GET /health`` answers 200: the model has generated a token."""
        try:
            with _opener.open(f"{self.url}/health", timeout=20) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait(self, timeout: float = 300.0, waiting: Callable[[float], None] | None = None) -> None:
        """Return when the server is healthy; ``waiting`` is called with the seconds waited so far.

        Args:
            timeout: seconds on a machine that does nothing else. Where four processes want each core, a second counts
                as a quarter of one.
            waiting: called about four times a second.

        Raises:
            ServerDied: when it ends first, or is not healthy in time.
        """
        started = last = time.monotonic()
        counted = 0.0
        while not self.healthy():
            now = time.monotonic()
            waited = now - started
            counted += (now - last) / slowdown()
            last = now
            status = self.process.poll()
            if status is not None:
                raise ServerDied(f"the server ended with status {status} before it was ready:\n{self.log()}")
            if counted > timeout:
                raise ServerDied(
                    f"the server was not ready after {timeout:.0f} s ({waited:.0f} s on a busy machine):\n{self.log()}"
                )
            if waiting is not None:
                waiting(waited)
            time.sleep(0.25)

    def stop(self, grace: float = 15.0) -> None:
        """End the server and its children: politely, then for good. Does nothing the second time."""
        if self._reaper.poll() is None:
            # Only the launcher is asked: it ends its children itself. Whoever is left is then killed.
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._await_killed()
            self._reaper.communicate(b"\n")

    def _await_killed(self) -> None:
        # The server's children end when they are next given a core, and hold their memory until then.
        end = time.monotonic() + _KILLED_END_S
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < end:
                os.killpg(self.process.pid, 0)
                time.sleep(0.01)
