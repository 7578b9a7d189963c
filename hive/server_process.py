"""A Hive server as a child process: started, waited for, and stopped with everything it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class ServerDied(RuntimeError):
    """The server ended, or did not answer in time; the message carries the end of its log."""


def free_port() -> int:
    """A loopback port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """``python -m MODULE --host 127.0.0.1 --port PORT FLAGS`` in a process group of its own."""

    def __init__(
        self,
        flags: Sequence[str],
        log_path: Path,
        *,
        module: str = "hive.launch_server",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = log_path
        command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(self.port), *flags]
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def log(self, lines: int = 30) -> str:
        """The last lines of the server's output."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def healthy(self) -> bool:
        """Whether ``GET /health`` answers 200: the model has generated a token."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=20) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
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
            time.sleep(0.5)

    def stop(self, grace: float = 15.0) -> None:
        """End the server and its children: politely, then for good. Does nothing the second time."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sign)
            except ProcessLookupError:
                break
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()
