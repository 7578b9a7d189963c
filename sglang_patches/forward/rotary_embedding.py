"""Derives a model's RoPE from its config, and verifies it against the tables of the loaded layers.

Whether a model's cached keys can be moved to other positions must be decided here, at the start: a wrong frequency
would silently degrade the output.  The modules do not show what a layer does with its keys after the rotation
(HunYuan normalizes them).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding.base import LinearScalingRotaryEmbedding, RotaryEmbedding
from sglang.srt.layers.rotary_embedding.rope_variant import Llama3RotaryEmbedding
from sglang.srt.layers.rotary_embedding.yarn import YaRNScalingRotaryEmbedding

from hive.server.kv_segments.rotation import Rope, UnsupportedRope, field_of

_CLASSES = (RotaryEmbedding, LinearScalingRotaryEmbedding, Llama3RotaryEmbedding, YaRNScalingRotaryEmbedding)
"""Only these classes: their subclasses rotate differently."""

_ANGLE_ERROR = 2e-6
"""Relative error of an angle: SGLang multiplies positions by frequencies in float32."""


def rope_of(model: torch.nn.Module, config: Any) -> Rope:
    """Return the RoPE of an SGLang model; ``config`` is its text model's Hugging Face config.

    Raises:
        UnsupportedRope: if layers lack RoPE or differ in kind, or if the config does not explain their class or tables.
    """
    kinds = sorted(set(field_of(config, "layer_types") or ()))
    if len(kinds) > 1:
        raise UnsupportedRope(f"This model has layers of different kinds ({', '.join(kinds)}).")
    # SmolLM3 has rotary modules everywhere, but some layers do not use them; a 0 marks such a layer.
    if 0 in (field_of(config, "no_rope_layers") or ()):
        raise UnsupportedRope("Some layers of this model have no RoPE (its config's no_rope_layers).")
    plain = Rope.from_config(config)
    rope: Rope | None = None
    verified: set[int] = set()
    for name, attention, module in _rotary_modules(model):
        if id(module) in verified:
            continue
        if type(module) not in _CLASSES:
            raise UnsupportedRope(
                f"{name} uses {type(module).__name__}, which is not supported. "
                f"Supported classes: {', '.join(each.__name__ for each in _CLASSES)}."
            )
        found = replace(plain, interleaved=not module.is_neox_style)
        if rope is not None and rope.interleaved != found.interleaved:
            raise UnsupportedRope(f"{name} pairs dimensions differently from the layers before it.")
        _verify(name, attention, module, found)
        verified.add(id(module))
        rope = found
    if rope is None:
        raise UnsupportedRope("This model has no attention layers whose keys SGLang caches.")
    return rope


def _rotary_modules(model: torch.nn.Module) -> Iterator[tuple[str, RadixAttention, Any]]:
    """Yield the rotary module next to each attention layer; one module may serve several layers."""
    for name, attention in model.named_modules():
        if not isinstance(attention, RadixAttention):
            continue
        owner = name.rpartition(".")[0]
        found = [
            (child, module)
            for child, module in model.get_submodule(owner).named_children()
            if "rotary" in type(module).__name__.lower()
        ]
        if len(found) != 1:
            how_many = f"{len(found)} rotary modules" if found else "no rotary module"
            raise UnsupportedRope(f"The attention layer {owner or 'of this model'} has {how_many}.")
        child, module = found[0]
        yield f"{owner}.{child}" if owner else child, attention, module


def _verify(name: str, attention: RadixAttention, module: Any, rope: Rope) -> None:
    """Verify that a module's table holds cos and sin of the RoPE's angles, up to a constant factor (YaRN's)."""
    for what, of_module, of_config in (
        ("heads of {} dimensions", module.head_size, rope.head_dim),
        ("heads of {} dimensions in the cache", attention.qk_head_dim, rope.head_dim),
        ("{} rotated dimensions", module.rotary_dim, rope.rotary_dim),
    ):
        if of_module != of_config:
            raise UnsupportedRope(f"{name} has {what.format(of_module)}; its config says {of_config}.")
    table = module.cos_sin_cache
    length = table.shape[0]
    positions = torch.tensor(sorted({*(2**power for power in range((length - 1).bit_length())), length - 1}))
    rows = table[torch.cat((torch.zeros(1, dtype=torch.int64), positions)).to(table.device)].double().cpu()
    cos, sin = rows.chunk(2, dim=-1)
    scale = cos[0, 0]
    angles = positions[:, None] * rope.inverse_frequencies
    precision = torch.finfo(table.dtype).eps + 1e-6
    for actual, expected in ((cos[1:] / scale, angles.cos()), (sin[1:] / scale, angles.sin())):
        right = (actual - expected).abs() <= precision * (expected.abs() + 1e-3) + _ANGLE_ERROR * angles
        if not right.all():
            position = int(positions[~right.all(dim=1)][0])
            raise UnsupportedRope(
                f"{name} ({type(module).__name__}) does not rotate keys of position {position} as its config "
                "says: its layers differ, or they use an unknown kind of RoPE."
            )
