"""A grown model computes what the small one computes, and so do its adapters."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="needs the server extra: uv pip install 'hive[server]'")
transformers = pytest.importorskip(
    "transformers", reason="needs the server extra: uv pip install 'hive[server]'"
)

from safetensors.torch import load_file, save_file  # noqa: E402

from bench.grown_model import folder  # noqa: E402
from bench.grown_model.__main__ import main  # noqa: E402
from bench.grown_model.folder import Plan, grow  # noqa: E402
from bench.grown_model.geometry import PRESETS, Geometry, GrowError, check_fits  # noqa: E402
from bench.grown_model.grower import MODULES  # noqa: E402
from hive.server.roles import ROLES, adapter  # noqa: E402

SMALL = Geometry(24, 2, 6, 2, 4, 40)
# Two copies of the stream and of key-value heads, three of the neurons, a rest of each; longer heads, one more layer.
BIG = Geometry(60, 3, 20, 5, 8, 130)
VOCABULARY = 64
PROMPT = torch.arange(1, 40)[None] % VOCABULARY
RANK = 3

Kind = str
CLASSES: dict[Kind, Callable[..., Any]] = {
    "tied": lambda **sizes: transformers.LlamaConfig(tie_word_embeddings=True, **sizes),
    "untied": lambda **sizes: transformers.LlamaConfig(tie_word_embeddings=False, **sizes),
    "llama3 rope": lambda **sizes: transformers.LlamaConfig(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        **sizes,
    ),
    # The family whose queries, keys and values have biases.
    "qwen2": lambda **sizes: transformers.Qwen2Config(**sizes),
}


class Pair(NamedTuple):
    """A small model with an adapter, on disk."""

    source: Path
    adapter: Path


def make(tmp_path: Path, kind: Kind = "tied") -> Pair:
    """Random weights, much larger than those of a model that is about to be trained: a sure model."""
    torch.manual_seed(0)
    config = CLASSES[kind](vocab_size=VOCABULARY, max_position_embeddings=64, **SMALL.as_config())
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        weight.data = torch.randn_like(weight) * 0.4 + ("norm" in name)
    model.save_pretrained(tmp_path / "small")
    tensors: dict[str, Any] = {}
    for number in range(SMALL.num_hidden_layers):
        for module in MODULES:
            outputs, inputs = model.get_parameter(f"model.layers.{number}.{module}.weight").shape
            name = f"base_model.model.model.layers.{number}.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, inputs) * 0.3
            tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, RANK) * 0.3
    role = tmp_path / "speaker"
    role.mkdir()
    save_file(tensors, role / "adapter_model.safetensors")
    (role / "adapter_config.json").write_text(
        json.dumps(
            {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "base_model_name_or_path": "somebody/small"}
        )
    )
    return Pair(tmp_path / "small", role)


def plan(pair: Pair, **changes: Any) -> Plan:
    made = Plan(pair.source, {"speaker": pair.adapter}, "own", BIG, dtype=torch.float32)
    return dataclasses.replace(made, **changes)


def loaded(model: Path, role: Path | None = None) -> Any:
    """A model in float64, with an adapter merged into its weights."""
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    if role is not None:
        tensors = load_file(role / "adapter_model.safetensors")
        for name in [name for name in tensors if ".lora_A." in name]:
            weight = network.get_parameter(name.removeprefix("base_model.model.").replace(".lora_A", ""))
            weight.data += tensors[name.replace("lora_A", "lora_B")].double() @ tensors[name].double()
    return network


@torch.inference_mode()
def assert_same_function(small: Any, big: Any) -> None:
    one, other = (model(PROMPT).logits[0].log_softmax(-1) for model in (small, big))
    assert one.exp().max() > 0.5, (
        "the small model is sure of something, so that there is something to be wrong about"
    )
    # Weights are kept in float32, and norms and queries are no longer the small ones times a power of two.
    assert (one - other).abs().max() < 1e-3
    assert (one.exp() * (one - other)).sum(-1).max() < 1e-8
    written = [
        model.generate(PROMPT, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0)
        for model in (small, big)
    ]
    assert torch.equal(*written)


@pytest.mark.parametrize(("kind", "fill"), [*((kind, "copies") for kind in CLASSES), ("tied", "zero")])
def test_the_function_stays_the_same(kind: Kind, fill: Any, tmp_path: Path) -> None:
    pair = make(tmp_path, kind)
    assert grow(plan(pair, fill=fill), tmp_path / "big", say=lambda _: None)
    big = loaded(tmp_path / "big")
    assert_same_function(loaded(pair.source), big)
    with_adapter = loaded(tmp_path / "big", tmp_path / "big" / "roles" / "speaker")
    assert_same_function(loaded(pair.source, pair.adapter), with_adapter)
    assert Geometry.of(big.config.to_dict()) == BIG
    projections = [weight for name, weight in big.named_parameters() if "_proj" in name]
    live = sum(float((weight != 0).sum()) for weight in projections) / sum(
        weight.numel() for weight in projections
    )
    assert live > 0.6 if fill == "copies" else live < 0.4


def test_what_is_written_and_that_it_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SHARD_BYTES", 1)
    pair, out = make(tmp_path), tmp_path / "deep" / "big"
    told: list[str] = []
    assert grow(plan(pair, dtype=torch.bfloat16), out, told.append)
    assert "GB of weights to" in told[0]
    config, small = (json.loads((place / "config.json").read_text()) for place in (out, pair.source))
    assert Geometry.of(config) == BIG
    # 48 of 60 dimensions are live, in two copies.
    assert config["rms_norm_eps"] == pytest.approx(small["rms_norm_eps"] * 48 / 60)
    assert config["tie_word_embeddings"] is False
    assert config["dtype"] == "bfloat16"
    unchanged = small.keys() - BIG.as_config().keys() - {"rms_norm_eps", "tie_word_embeddings", "dtype"}
    assert {name: config[name] for name in unchanged} == {name: small[name] for name in unchanged}
    assert len(list(out.glob("*.safetensors"))) == 1 + BIG.num_hidden_layers
    assert (out / "generation_config.json").is_file()
    described = json.loads((out / "roles/speaker/adapter_config.json").read_text())
    assert (described["r"], described["base_model_name_or_path"]) == (RANK, None)
    assert not grow(plan(pair, dtype=torch.bfloat16), out, told.append)
    assert len(told) == 1
    assert [path.name for path in out.parent.iterdir()] == ["big"]


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    pair, out = make(tmp_path), tmp_path / "big"
    grow(plan(pair), out, say=lambda _: None)
    with pytest.raises(
        GrowError, match="a grown model with fill 'copies' instead of 'zero'; give another folder"
    ):
        grow(plan(pair, fill="zero"), out)
    with pytest.raises(GrowError, match="small holds something that was not grown"):
        grow(plan(pair), pair.source)


def test_nothing_is_left_of_a_run_that_fails(tmp_path: Path) -> None:
    pair = make(tmp_path)
    tensors = load_file(pair.adapter / "adapter_model.safetensors")
    save_file(
        {"base_model.model.lm_head.lora_A.weight": torch.zeros(1), **tensors},
        pair.adapter / "adapter_model.safetensors",
    )
    with pytest.raises(GrowError, match=r"the adapter has base_model\.model\.lm_head\.lora_A"):
        grow(plan(pair), tmp_path / "big", say=lambda _: None)
    assert {path.name for path in tmp_path.iterdir()} == {"small", "speaker"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 16}, "hidden_size is 24 in the model, and 16 in the geometry"),
        ({"num_hidden_layers": 1}, "num_hidden_layers is 2 in the model, and 1"),
        ({"num_attention_heads": 10}, "3 query heads share a key-value head in the model, and 2"),
        ({"hidden_size": 59}, "hidden_size 59 is no multiple of 20 heads"),
        ({"head_dim": 6}, "head_dim 6 is no multiple of the model's 4"),
    ],
)
def test_a_geometry_into_which_the_model_does_not_fit(
    changes: dict[str, int], words: str, tmp_path: Path
) -> None:
    with pytest.raises(GrowError, match=words):
        grow(plan(make(tmp_path), big=dataclasses.replace(BIG, **changes)), tmp_path / "big")
    assert not (tmp_path / "big").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model_type": "gpt2"},
            r"model_type 'gpt2'; those that can be grown are \['llama', 'mistral', 'qwen2'\]",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "RoPE scaled by 'yarn' depends on head_dim"),
    ],
)
def test_a_model_of_another_kind(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    pair = make(tmp_path)
    config = json.loads((pair.source / "config.json").read_text())
    (pair.source / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(GrowError, match=words):
        grow(plan(pair), tmp_path / "big")


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make(tmp_path)
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(GrowError, match=r"it takes 0\.0 GB, and 0\.0 GB are free for"):
        grow(plan(pair), tmp_path / "big", say=lambda _: None)
    assert not (tmp_path / "big").exists()


@pytest.mark.parametrize("preset", PRESETS)
def test_the_embedded_model_fits_into_every_preset(preset: str) -> None:
    small = Geometry(576, 30, 9, 3, 64, 1536)
    check_fits({"model_type": "llama", **small.as_config()}, PRESETS[preset])


def test_the_cost_is_that_of_the_presets_name() -> None:
    assert PRESETS["llama-8b"].parameters(128_256) == 8_030_261_248
    assert 1e9 < PRESETS["1b"].parameters(49_152) < 1.4e9


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, words in (
        (["--source", str(tmp_path / "nowhere")], "is no model's folder: it has no config.json"),
        (
            ["--source", str(make(tmp_path).source), "--adapters", str(tmp_path)],
            "has no adapter_model.safetensors",
        ),
    ):
        with pytest.raises(SystemExit, match=words):
            main([str(tmp_path / "big"), "--preset", "tiny", *wrong])
    small = ["--source", str(tmp_path / "small"), "--adapters", str(tmp_path / "speaker")]
    for said in ("done in", "holds it already: nothing to do"):
        main([str(tmp_path / "big"), "--preset", "tiny", "--device", "cpu", *small])
        assert said in capsys.readouterr().out


@pytest.mark.parametrize("role", ROLES)
def test_the_shipped_adapters_are_of_a_kind_that_can_be_grown(role: str) -> None:
    names = load_file(adapter(role) / "adapter_model.safetensors")  # type: ignore[arg-type]
    assert {".".join(name.split(".")[5:7]) for name in names} == set(MODULES)
