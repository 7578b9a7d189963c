"""The stored adapters: complete, small, and of the embedded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hive import roles
from hive.roles import ROLES, Role, adapter, lora_flags

MOST = 12_000_000


@pytest.mark.parametrize("role", ROLES)
def test_an_adapter_is_stored_in_pefts_format_and_small(role: Role) -> None:
    folder = adapter(role)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    weights = folder / "adapter_model.safetensors"
    safetensors = pytest.importorskip(
        "safetensors", reason="needs the server extra: uv pip install 'hive[server]'"
    )
    assert weights.stat().st_size <= MOST
    with safetensors.safe_open(weights, framework="pt") as tensors:
        names = list(tensors.keys())
        # Two matrices for each of seven projections in each of 30 layers.
        assert len(names) == 2 * 7 * 30
        for name in names:
            rank_first = tensors.get_slice(name).get_shape()[0 if "lora_A" in name else 1]
            assert rank_first == config["r"]
            assert tensors.get_tensor(name).isfinite().all()


@pytest.mark.parametrize("role", ROLES)
def test_what_an_adapter_learnt_stands_beside_it(role: Role) -> None:
    metrics = json.loads((adapter(role) / "metrics.json").read_text())
    assert metrics["role"] == role


def test_flags_name_every_adapter_and_a_backend_that_runs_on_a_cpu() -> None:
    on_cpu = lora_flags(True)
    assert on_cpu[:3] == ["--enable-lora", "--lora-backend", "torch_native"]
    paths = dict(word.split("=", 1) for word in on_cpu[on_cpu.index("--lora-paths") + 1 :])
    assert paths == {role: str(adapter(role)) for role in ROLES}
    assert "--lora-backend" not in lora_flags(False)


def test_an_adapter_that_is_not_there_is_named_with_what_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(
        FileNotFoundError, match=r"valuer is not installed; scripts/train_roles\.py --role valuer"
    ):
        adapter("valuer")
