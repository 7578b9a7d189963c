"""A Hive server as a child process, which is stopped together with all of its own children."""

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

# Kills the server's process group if this process ends without stop(), which closes the reaper's standard input.
_REAPER = 'read -r _ || kill -KILL "-$1"'

_KILLED_END_S = 5.0
"""Maximum seconds to wait for killed processes."""

# Bypasses http_proxy, because the server is on loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Process(Protocol):
    """The part of ``subprocess.Popen`` that :class:`ServerProcess` uses."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...


class ServerDied(RuntimeError):
    """The server ended, or was not ready in time; the message includes the end of its log."""


def free_port() -> int:
    """Return an unused loopback port.

    It is below the range that systems use for outgoing connections: a server binds its port only after a minute of
    start-up, and until then an outgoing connection could take a port in that range.
    """
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _runner(module: str) -> Callable[[Sequence[str], Path, Mapping[str, str]], Process]:
    def run(flags: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> Process:
        inherited = {**os.environ}
        # Containers often set it. Each of the three processes would then compile 7,000 modules at every start, which
        # takes longer than the rest of the start.
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
    """Return the number of processes that compete for each core; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class ServerProcess:
    """Runs ``python -m MODULE --host 127.0.0.1 --port PORT FLAGS`` in its own process group.

    :meth:`stop` ends the group.  It also ends when the process that created this object ends, in whatever way.
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
        """Start the server.

        Args:
            flags: the flags of the module.
            log_path: the file for the server's output.
            module: the module to run.
            environment: variables besides those of this process.
            port: the port of an ended server that this one replaces; by default, an unused one.
            start: starts the process differently, given these flags, this file and these variables; the process must
                lead its own group.
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
        """Return the last lines of the server's output."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def healthy(self) -> bool:
        """Whether ``GET /health`` returns 200, which means that the model has generated a token."""
        try:
            with _opener.open(f"{self.url}/health", timeout=20) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait(self, timeout: float = 300.0, waiting: Callable[[float], None] | None = None) -> None:
        """Block until the server is healthy; ``waiting`` is called with the seconds waited so far.

        Args:
            timeout: seconds on an idle machine.  If four processes compete for each core, a second counts as a quarter.
            waiting: called about four times a second.

        Raises:
            ServerDied: if it ends first, or is not healthy in time.
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
        """Stop the server and its children: terminate, then kill after ``grace`` seconds; idempotent."""
        if self._reaper.poll() is None:
            # Terminate only the launcher, which ends its children itself, and then kill what is left.
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._await_killed()
            self._reaper.communicate(b"\n")

    def _await_killed(self) -> None:
        # Killed processes keep their memory until they get a core to end on.
        end = time.monotonic() + _KILLED_END_S
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < end:
                os.killpg(self.process.pid, 0)
                time.sleep(0.01)
