"""What mypy says of programs: it finds wrong arguments, and infers what operations return."""

from __future__ import annotations

from pathlib import Path

from mypy import api

ROOT = Path(__file__).parents[2]


def test_mypy_finds_wrong_arguments_and_keeps_types() -> None:
    file = ROOT / "tests/frontend/typing/calls.py"
    # The cache of scripts/check makes this fast.
    places = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    out, error, status = api.run([*places, "--warn-unused-ignores", "--follow-imports=silent", str(file)])
    assert (out, error, status) == ("Success: no issues found in 1 source file\n", "", 0)
