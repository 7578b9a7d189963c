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

# Kills the server's process group when this process has gone without stop(): the end of its standard input says so.
_REAPER = 'read -r _ || kill -KILL "-$1"'

_KILLED_END_S = 5.0
"""The longest that killed processes are waited for."""

# http_proxy must not come between this process and a server on loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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
    ) -> None:
        """``port`` is that of a server that has gone, for one that takes its place; otherwise a free one."""
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = log_path
        command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(self.port), *flags]
        inherited = {**os.environ}
        # Containers like to set it. Each of the three processes would then compile 7,000 modules at every start,
        # which takes longer than all the rest of it.
        inherited.pop("PYTHONDONTWRITEBYTECODE", None)
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**inherited, **(environment or {})},
            )
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

        Raises:
            ServerDied: when it ends first, or is not healthy within ``timeout`` seconds.
        """
        started = time.monotonic()
        while not self.healthy():
            waited = time.monotonic() - started
            status = self.process.poll()
            if status is not None:
                raise ServerDied(f"the server ended with status {status} before it was ready:\n{self.log()}")
            if waited > timeout:
                raise ServerDied(f"the server was not ready after {timeout:.0f} s:\n{self.log()}")
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
