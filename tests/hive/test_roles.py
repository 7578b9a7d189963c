"""The stored adapters: complete, small, and of the embedded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hive.server import roles
from hive.server.roles import ROLES, Role, UnfitAdapter, adapter, adapters_of, lora_flags
from hive.server.roles.fit import WEIGHTS

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


Shapes = dict[str, list[int]]
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
MODEL: Shapes = {f"{Q}.weight": [48, 32], f"{DOWN}.weight": [32, 80], "model.embed_tokens.weight": [100, 32]}


def header(path: Path, shapes: Shapes) -> Path:
    """A file of safetensors, less its data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {"__metadata__": {}, **{name: {"shape": shape} for name, shape in shapes.items()}}
    ).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path.parent


def low_rank(outputs: int = 48, inputs: int = 32, module: str = Q) -> Shapes:
    """An adapter of rank 4 of one module."""
    name = f"base_model.model.{module}"
    return {f"{name}.lora_A.weight": [4, inputs], f"{name}.lora_B.weight": [outputs, 4]}


def test_adapters_beside_a_model_are_served_and_named_as_their_folders(tmp_path: Path) -> None:
    model = header(tmp_path / "model-00001.safetensors", MODEL)
    speaker = header(tmp_path / "roles" / "speaker" / WEIGHTS, low_rank())
    critic = header(tmp_path / "roles" / "critic" / WEIGHTS, low_rank(32, 80, DOWN))
    (tmp_path / "roles" / "notes").mkdir()
    assert adapters_of(model) == {"critic": critic, "speaker": speaker}
    assert lora_flags(False, model) == [
        "--enable-lora",
        "--lora-paths",
        f"critic={critic}",
        f"speaker={speaker}",
    ]


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (low_rank(inputs=64), f"{Q} reads 64 values in the adapter, and 32 in the model"),
        (low_rank(outputs=40), f"{Q} writes 40 values in the adapter, and 48 in the model"),
        (low_rank(module="model.layers.1.mlp.up_proj"), "changes model.layers.1.mlp.up_proj, which"),
    ],
)
def test_an_adapter_of_another_model_is_refused_with_both_sizes_and_the_fix(
    shapes: Shapes, words: str, tmp_path: Path
) -> None:
    model = header(tmp_path / "model.safetensors", MODEL)
    header(tmp_path / "roles" / "speaker" / WEIGHTS, shapes)
    with pytest.raises(UnfitAdapter, match=rf"the adapter speaker .*{words}.*list them with --lora-paths"):
        adapters_of(model)


def test_the_shipped_adapters_are_refused_beside_another_model(tmp_path: Path) -> None:
    model = header(tmp_path / "model.safetensors", MODEL)
    with pytest.raises(
        UnfitAdapter, match=r"the adapter proposer .* reads 1536 values in the adapter, and 80 in"
    ):
        adapters_of(model)
    with pytest.raises(UnfitAdapter, match=r"org/name has no \*\.safetensors"):
        adapters_of(Path("org/name"))
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    with pytest.raises(UnfitAdapter, match="cannot tell whether the adapter"):
        adapters_of(model)


def test_the_shipped_adapters_are_served_beside_the_embedded_model_wherever_it_is(tmp_path: Path) -> None:
    shapes: Shapes = {}
    for role in ROLES:
        with (adapter(role) / WEIGHTS).open("rb") as file:
            tensors = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        tensors.pop("__metadata__", None)
        for name, tensor in tensors.items():
            module = name.removeprefix("base_model.model.").rpartition(".lora_")[0]
            size = shapes.setdefault(f"{module}.weight", [0, 0])
            size[".lora_A." in name] = tensor["shape"][".lora_A." in name]
    assert len(shapes) == 7 * 30
    model = header(tmp_path / "model.safetensors", shapes)
    assert lora_flags(True, model) == lora_flags(True)
