"""A server that has lost a process: one line with the cause."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_patches.hooks.scheduler import around_run_event_loop
from sglang_patches.hooks.tokenizer_manager import cause_of


class Process:
    """A child as the launcher sees it, which ends while one waits for it."""

    pid = 7

    def __init__(self, status: int | None, later: int | None = None) -> None:
        self.exitcode, self._later = status, later

    def join(self, seconds: float) -> None:
        if seconds and self._later is not None:
            self.exitcode = self._later


@pytest.mark.parametrize(
    ("processes", "cause"),
    [
        ([Process(None), Process(-9)], "second (process 7) was killed by SIGKILL"),
        ([Process(3), Process(None)], "first (process 7) ended with status 3"),
        ([Process(0, later=0), Process(None, later=-250)], "second (process 7) was killed by signal 250"),
        ([Process(0), Process(None)], "a scheduler or the detokenizer failed; see its error above"),
    ],
)
def test_the_cause_names_the_process(processes: Any, cause: str) -> None:
    assert cause_of(processes, ["first", "second"]) == cause


def test_a_scheduler_reports_its_failure_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def loop(_scheduler: Any) -> None:
        raise ValueError("two\nlines " + "x" * 1000)

    with pytest.raises(ValueError, match="two"):
        around_run_event_loop(loop, SimpleNamespace())  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.startswith("hive: a scheduler failed: ValueError: two lines xxx")
    assert said.count("\n") == 1
    assert len(said) < 600


def test_the_server_ends_with_status_1_and_ends_its_children() -> None:
    pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")
    program = """
import subprocess, sys
from types import SimpleNamespace
from sglang_patches.hooks.tokenizer_manager import running_phase_sigquit_handler
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
manager = SimpleNamespace(_subprocess_watchdog=None, dump_requests_before_crash=lambda: None)
running_phase_sigquit_handler(SimpleNamespace(tokenizer_manager=manager))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last == "hive: the server ends with status 1: one of its processes requested it"
    stat = Path(f"/proc/{ended.stdout.strip()}/stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
