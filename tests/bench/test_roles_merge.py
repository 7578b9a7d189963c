"""An adapter that is merged into its model says what model and adapter say together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the server extra: uv pip install 'hive[server]'")
peft = pytest.importorskip("peft", reason="needs the train extra: uv pip install 'hive[train]'")
transformers = pytest.importorskip(
    "transformers", reason="needs the server extra: uv pip install 'hive[server]'"
)

from bench.training.merge import merge  # noqa: E402


def test_a_merged_model_answers_as_model_and_adapter_do(tmp_path: Path) -> None:
    torch.manual_seed(1)
    base, adapted, out = tmp_path / "base", tmp_path / "adapter", tmp_path / "out"
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            dtype="float32",
        )
    ).eval()
    model.save_pretrained(base)
    files = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    for name in files:
        (base / name).write_text(json.dumps({"of": name}))
    ids = torch.arange(10)[None]
    alone = model(ids).logits
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    together = peft.get_peft_model(model, config)
    together.save_pretrained(adapted)
    expected = together(ids).logits

    merge(base, adapted, out)

    merged = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    difference = (merged(ids).logits - expected).abs().max()
    # What bfloat16 rounds off is little beside what the adapter changes.
    assert difference < 0.05 * (alone - expected).abs().max()
    for name in files:
        assert (out / name).read_bytes() == (base / name).read_bytes()
