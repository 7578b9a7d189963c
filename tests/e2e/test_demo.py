"""The demo as a user runs it, against a server that is up already (starting one is what the fixture does)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hive.server.server_process import slowdown

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.server, pytest.mark.e2e]


def demo(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "demo", *flags],
        capture_output=True,
        text=True,
        timeout=500 * slowdown(),
        cwd=ROOT,
    )


def test_the_demo_plays_and_leaves_its_results(server: Any, tmp_path: Path) -> None:
    summary_file = tmp_path / "summary.json"
    done = demo(
        "--url", server.url, "--puzzles", "1", "--json", str(summary_file), "--out", str(tmp_path / "out")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(summary_file.read_text())
    keys = {"puzzles", "solved", "requests", "tokens_generated", "tokens_replayed", "wall_s", "agents"}
    assert keys <= summary.keys()
    assert set(summary["agents"]) == {"proposer", "valuer"}
    assert summary["requests"] > 10
    assert summary["tokens_replayed"] > 0
    trees = list((tmp_path / "out").glob("*.html"))
    assert len(trees) == 1
    assert "</svg>" in trees[0].read_text()
    assert "replayed" in done.stdout


def test_a_server_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    done = demo("--url", "http://127.0.0.1:9", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_model_for_a_running_server_is_refused(tmp_path: Path) -> None:
    done = demo("--url", "http://127.0.0.1:9", "--model", "x", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "--model" in done.stderr
