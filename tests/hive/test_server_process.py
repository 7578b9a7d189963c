"""ServerProcess against a stand-in for the server that starts in no time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hive.server.server_process import ServerDied, ServerProcess

STAND_IN = """
import argparse, http.server, pathlib, signal, subprocess, sys, time
parser = argparse.ArgumentParser()
for flag in ("--host", "--port", "--die", "--children"):
    parser.add_argument(flag)
parser.add_argument("--deaf", action="store_true")
parser.add_argument("--slow", action="store_true")
args = parser.parse_args()
print("a line of the log", flush=True)
if args.die:
    sys.exit(int(args.die))
if args.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.children:
    # A child that would outlive its parent, as a scheduler process does whose launcher is killed.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(args.children).write_text(str(child.pid))
if args.slow:
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer((args.host, int(args.port)), Handler).serve_forever()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    started: list[ServerProcess] = []

    def start(*flags: str, **environment: str) -> ServerProcess:
        server = ServerProcess(
            flags,
            tmp_path / "server.log",
            module="stand_in",
            environment={"PYTHONPATH": str(tmp_path), **environment},
        )
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop(grace=0)


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended but was not waited for (a zombie) does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_it_starts_answers_and_stops(start: Callable[..., ServerProcess]) -> None:
    server = start()
    assert not server.url.endswith(":0")
    waited: list[float] = []
    server.wait(timeout=30, waiting=waited.append)
    assert server.healthy()
    assert waited == sorted(waited)
    server.stop()
    server.stop()
    assert server.process.poll() is not None
    assert not server.healthy()


def test_a_proxy_does_not_come_in_between(
    start: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    start().wait(timeout=30)


def test_a_server_that_ends_says_why(start: Callable[..., ServerProcess]) -> None:
    with pytest.raises(ServerDied, match=r"(?s)status 3 before it was ready.*a line of the log"):
        start("--die", "3").wait(timeout=30)


def test_a_server_that_never_answers_is_given_up(start: Callable[..., ServerProcess]) -> None:
    with pytest.raises(ServerDied, match="not ready after 1 s"):
        start("--slow").wait(timeout=1)


def test_children_end_with_a_server_that_does_not_listen(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start("--deaf", "--children", str(tmp_path / "pid"))
    server.wait(timeout=30)
    child = int((tmp_path / "pid").read_text())
    assert alive(child)
    server.stop(grace=0.2)
    assert server.process.returncode == -signal.SIGKILL
    assert not alive(child)


def test_nothing_survives_the_death_of_the_one_who_started_it(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    program = f"""
import time
from pathlib import Path
from hive.server.server_process import ServerProcess
server = ServerProcess(["--children", {str(tmp_path / "pid")!r}], Path({str(tmp_path / "log")!r}), module="stand_in")
server.wait(timeout=30)
print(server.process.pid, flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}:{Path.cwd() / 'frontend'}"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()), int((tmp_path / "pid").read_text())]
        assert all(alive(pid) for pid in pids)
        parent.kill()
    assert eventually(lambda: not any(alive(pid) for pid in pids))
