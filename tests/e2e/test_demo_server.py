"""``scripts/demo`` and the server it starts itself: that one ends with it, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from hive.server.server_process import slowdown

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.server, pytest.mark.e2e]


def start(out: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [ROOT / "scripts" / "demo", "--out", str(out), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        # Where the tests run in the background, the shell has SIGINT ignored, and so would the demo.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def servers(log: Path) -> list[int]:
    """Processes whose output goes to this log: the server and all its children."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "fd" / "1") == str(log):
                found.append(int(process.name))
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
    return found


def test_one_command_does_it_all(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    with start(tmp_path / "out", "--puzzles", "1", "--json", str(summary)) as demo:
        output, _ = demo.communicate(timeout=500 * slowdown())
    assert demo.returncode == 0, output
    assert "Server ready at http://127.0.0.1:" in output
    assert output.rstrip().endswith("Server stopped.")
    assert json.loads(summary.read_text())["puzzles"] == 1
    assert servers(tmp_path / "out" / "server.log") == []


def iter_until(lines: Iterable[str], words: str) -> Iterator[str]:
    """The lines up to the first one that contains the words."""
    for line in lines:
        yield line
        if words in line:
            return


@pytest.mark.parametrize(("sign", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_demo_and_server(tmp_path: Path, sign: signal.Signals, status: int) -> None:
    log = tmp_path / "server.log"
    with start(tmp_path) as demo:
        assert demo.stdout is not None
        # From this line on the server is the demo's to stop; a signal that comes while it is being started is the
        # reaper's case (tests/hive/test_server_process.py).
        output = "".join(iter_until(demo.stdout, "Server starting"))
        assert servers(log)
        demo.send_signal(sign)
        output += demo.stdout.read()
        demo.wait(60 * slowdown())
    assert demo.returncode == status, output
    assert "Server stopped." in output
    assert "Traceback" not in output
    assert servers(log) == []


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    empty = tmp_path / "model"
    empty.mkdir()
    with start(tmp_path, "--model", str(empty)) as demo:
        output, _ = demo.communicate(timeout=300 * slowdown())
    assert demo.returncode == 1
    assert "before it was ready" in output
    # What SGLang says about a folder without a model, from the log.
    assert "config.json" in output or "model_type" in output
    assert servers(tmp_path / "server.log") == []
