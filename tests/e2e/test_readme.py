"""README's example runs as written, against the real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hive.server.server_process import slowdown

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.server
@pytest.mark.e2e
def test_the_example_runs_as_written(server: Any, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    program = tmp_path / "example.py"
    program.write_text(example.replace("http://localhost:30000", server.url))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240 * slowdown())
    assert done.returncode == 0, done.stderr
    assert " / " in done.stdout
    assert "requests=" in done.stdout
