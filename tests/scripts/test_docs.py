"""``scripts/docs``: the API reference is built, and has what programs may use."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import hive_frontend
import pytest

ROOT = Path(__file__).parents[2]


def docs(*arguments: str | Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "docs", *arguments],
        env={**os.environ, "PYTHON": python},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(
    importlib.util.find_spec("pdoc") is None, reason="needs the docs extra: uv pip install 'hive[docs]'"
)
def test_every_public_name_of_the_frontend_has_an_entry(tmp_path: Path) -> None:
    done = docs("--frontend", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    page = (tmp_path / "hive_frontend.html").read_text(encoding="utf-8")
    entries = set(re.findall(r'<section id="([^".]+)"', page))
    assert set(hive_frontend.__all__) <= entries
    assert (tmp_path / "hive_frontend" / "testing.html").is_file()
    assert (tmp_path / "index.html").is_file()
    # Nothing is loaded from elsewhere.
    assert re.findall(r'(?:src="|<link[^>]*href=")https?:', page) == []


def test_a_missing_pdoc_is_said_in_one_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    done = docs("--frontend", tmp_path / "out", python=str(python))
    assert done.returncode == 1
    assert done.stderr == f"docs: {python} has no pdoc. Run: uv pip install 'hive[docs]'\n"
