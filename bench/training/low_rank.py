"""LoRA adapters in plain torch, written in PEFT's format: for training where only torch and transformers are there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from bench.training.lora import TARGETS


class LowRank(nn.Module):
    """A frozen linear layer with a product of two thin matrices beside it, which begins as zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.on = True
        self.scale = 2.0
        """LoRA's alpha over its rank; the same as of the other roles."""
        device = base.weight.device
        self.down = nn.Parameter(torch.empty(rank, base.in_features, device=device))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, given: Tensor) -> Tensor:
        """The layer's output with the adapter's, in the type of the input; the adapter itself is float32."""
        out: Tensor = self.base(given)
        if self.on:
            thin = linear(given, self.down.to(given.dtype))
            out = out + self.scale * linear(thin, self.up.to(given.dtype))
        return out


def adapt(model: nn.Module, rank: int) -> list[nn.Parameter]:
    """Freeze a model and put an adapter into it, in its place; returns what is to be trained."""
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if name.rpartition(".")[2] in TARGETS and isinstance(layer, nn.Linear):
            model.set_submodule(name, LowRank(layer, rank))
    return [part for layer in _layers(model).values() for part in (layer.down, layer.up)]


@contextmanager
def without(model: nn.Module) -> Iterator[None]:
    """The model as it was, as long as the context lasts; without an adapter in it nothing changes."""
    layers = _layers(model).values()
    for layer in layers:
        layer.on = False
    try:
        yield
    finally:
        for layer in layers:
            layer.on = True


def save(model: nn.Module, folder: Path, base_name: str) -> None:
    """Write the adapter as PEFT does, in bfloat16. ``base_name`` is what it says of its base."""
    from safetensors.torch import save_file

    layers = _layers(model)
    rank, scale = next((layer.down.shape[0], layer.scale) for layer in layers.values())
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        "r": rank,
        "lora_alpha": int(scale * rank),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {
        f"base_model.model.{name}.{part}.weight": value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, layer in layers.items()
        for part, value in (("lora_A", layer.down), ("lora_B", layer.up))
    }
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _layers(model: nn.Module) -> dict[str, LowRank]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LowRank)}
