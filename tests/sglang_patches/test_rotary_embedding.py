"""Models' RoPE against SGLang's modules: it turns keys as they do, and what it cannot explain is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.runtime_context import get_context

from hive.server.kv_segments.rotation import UnsupportedRope
from sglang_patches.forward.rotary_embedding import rope_of

HEADS, HEAD_DIM, LONGEST = 2, 32, 16_384
SIZES = {"num_attention_heads": HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": LONGEST}
DEFAULT = {"rope_type": "default", "rope_theta": 10_000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
}
YARN_OF_ALL = {
    **YARN,
    "beta_fast": 16,
    "beta_slow": 2,
    "truncate": False,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
VARIANTS = {
    "default": DEFAULT,
    "large theta": {**DEFAULT, "rope_theta": 5_000_000.0},
    "linear": LINEAR,
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, all said": YARN_OF_ALL,
}


@pytest.fixture(autouse=True, scope="module")
def _server_args() -> Iterator[None]:
    """SGLang's modules read the server's settings when they are made."""
    with get_context().override_server_args():
        yield


def module_of(
    parameters: dict[str, Any] = DEFAULT,
    dtype: torch.dtype = torch.float32,
    partial: float = 1.0,
    neox: bool = True,
    head_dim: int = HEAD_DIM,
) -> Any:
    """What SGLang's models make of these parameters."""
    theta = parameters["rope_theta"]
    return get_rope(head_dim, head_dim, LONGEST, theta, neox, parameters, dtype, partial)


def config_of(parameters: dict[str, Any] = DEFAULT, **others: Any) -> dict[str, Any]:
    return {**SIZES, "rope_parameters": parameters, **others}


class Layer(nn.Module):
    def __init__(self, number: int, *modules: Any) -> None:
        super().__init__()
        self.rotary_emb = modules[0] if modules else None
        if len(modules) > 1:
            self.other_emb = modules[1]
        self.attn = RadixAttention(HEADS, HEAD_DIM, 1.0, HEADS, number)


class Model(nn.Module):
    """Attention layers with these rotary modules."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Layer(number, *(each if isinstance(each, tuple) else (each,)))
            for number, each in enumerate(layers)
        )


@pytest.mark.parametrize("partial", [1.0, 0.5])
@pytest.mark.parametrize("neox", [True, False], ids=["halves", "interleaved"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_keys_are_moved_to_where_the_module_would_have_put_them(
    variant: str, neox: bool, partial: float
) -> None:
    parameters = VARIANTS[variant]
    module = module_of(parameters, partial=partial, neox=neox)
    rope = rope_of(Model(module, module), config_of(parameters, partial_rotary_factor=partial))
    assert (rope.head_dim, rope.rotary_dim, rope.interleaved) == (HEAD_DIM, int(HEAD_DIM * partial), not neox)

    keys = torch.randn((5, HEADS * HEAD_DIM), generator=torch.Generator().manual_seed(3))
    old, new = torch.tensor([0, 3, 700, 2000, 2047]), torch.tensor([2047, 0, 701, 100, 2046])

    def of_module(positions: torch.Tensor) -> torch.Tensor:
        return module.forward_native(positions, keys.clone(), keys.clone())[1].view(5, HEADS, HEAD_DIM)

    moved, expected = rope.rotate(of_module(old), new - old), of_module(new)
    # SGLang's own angles are of float32: at position 2000 that is up to 1e-4.
    error = (moved - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    assert float(error.max()) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("said", VARIANTS)
@pytest.mark.parametrize("is_", VARIANTS)
def test_a_config_is_accepted_only_if_it_matches_the_table(said: str, is_: str, dtype: torch.dtype) -> None:
    model = Model(module_of(VARIANTS[is_], dtype))
    if said == is_:
        rope_of(model, config_of(VARIANTS[said]))
        return
    with pytest.raises(
        UnsupportedRope,
        match=r"layers\.0\.rotary_emb .* does not rotate keys of position \d+ as its config says",
    ):
        rope_of(model, config_of(VARIANTS[said]))


@pytest.mark.parametrize(
    ("is_", "said", "message"),
    [
        ({"partial": 0.5}, {}, "has 16 rotated dimensions; its config says 32"),
        ({"head_dim": 64}, {}, "has heads of 64 dimensions; its config says 32"),
        (
            {"head_dim": 64},
            {"head_dim": 64},
            "has heads of 32 dimensions in the cache; its config says 64",
        ),
        ({"parameters": {**DEFAULT, "rope_theta": 10_100.0}}, {}, "does not rotate keys of position"),
    ],
)
def test_other_sizes_and_frequencies_are_refused(
    is_: dict[str, Any], said: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedRope, match=message):
        rope_of(Model(module_of(**is_)), config_of(**said))


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
        {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        {"rope_type": "proportional", "rope_theta": 10_000.0},
        {"rope_type": "dynamic", "rope_theta": 10_000.0, "alpha": 1000.0},
    ],
    ids=lambda parameters: parameters["rope_type"],
)
def test_classes_that_rotate_differently_are_rejected_with_any_config(
    parameters: dict[str, Any],
) -> None:
    model = Model(module_of(parameters))
    name = type(model.layers[0].rotary_emb).__name__
    with pytest.raises(UnsupportedRope, match=f"uses {name}, which is not supported"):
        rope_of(model, config_of())
    with pytest.raises(UnsupportedRope, match="is not supported: its keys cannot be moved"):
        rope_of(model, config_of(parameters))


def test_layers_without_rope_are_refused() -> None:
    module = module_of()
    with pytest.raises(UnsupportedRope, match=r"layers\.1 has no rotary module"):
        rope_of(Model(module, None), config_of())
    with pytest.raises(UnsupportedRope, match="no_rope_layers"):
        rope_of(Model(module), config_of(no_rope_layers=[1, 1, 1, 0]))
    rope_of(Model(module), config_of(no_rope_layers=[1, 1]))


def test_layers_of_different_kinds_are_refused() -> None:
    default, linear = module_of(), module_of(LINEAR)
    with pytest.raises(UnsupportedRope, match=r"layers\.1\.rotary_emb \(LinearScaling.* its layers differ"):
        rope_of(Model(default, linear), config_of())
    with pytest.raises(UnsupportedRope, match=r"layers\.0 has 2 rotary modules"):
        rope_of(Model((default, linear)), config_of())
    with pytest.raises(UnsupportedRope, match=r"layers\.1\.rotary_emb pairs dimensions differently"):
        rope_of(Model(default, module_of(neox=False)), config_of())
    with pytest.raises(UnsupportedRope, match=r"different kinds \(full_attention, sliding_attention\)"):
        rope_of(Model(default), config_of(layer_types=["full_attention", "sliding_attention"]))
    rope_of(Model(default), config_of(layer_types=["full_attention"] * 2))


def test_several_modules_of_one_rope_are_one() -> None:
    of_half_precision = module_of(LLAMA3, torch.bfloat16)
    rope = rope_of(Model(module_of(LLAMA3), of_half_precision), config_of(LLAMA3))
    assert rope.rotary_dim == HEAD_DIM


def test_a_model_without_attention_layers_is_refused() -> None:
    with pytest.raises(UnsupportedRope, match="no attention layers"):
        rope_of(nn.Sequential(nn.Linear(2, 2)), config_of())
