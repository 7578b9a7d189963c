"""Large matrices of small ones that compute the same.

The large residual stream holds copies of the small one's, and nothing else but zeros: rows that write into it are
repeated, columns that read it take a share of each copy, and shares are powers of two that add up to one. Neurons and
key-value heads are repeated in the same way. What is left over is random in matrices that write into neurons and heads,
and zero in those that read them, so that a GPU, which spends less power on zeros, has real work.

- RoPE turns pair i of a head of 64 as it turns pair 2i of a head of 128, so that is where a head's pairs go; queries
  times the square root of 2 undo the larger head's scale.
- The mean of RMSNorm is over all dimensions, of which a share is live: weights times the root of the share, and its
  epsilon times the share, undo that.
- A layer whose ``o_proj`` and ``down_proj`` are zero changes nothing: such layers follow behind the small model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from bench.grown_model.geometry import Geometry, GrowError, check_fits

Fill = Literal["copies", "zero"]
"""What fills the weights beyond the small model's: copies of it and noise that nothing reads, or zeros."""
AxisName = Literal["hidden", "neurons", "kv", "heads"]
MODULES: Final[Mapping[str, tuple[AxisName, AxisName]]] = {
    "self_attn.q_proj": ("heads", "hidden"),
    "self_attn.k_proj": ("kv", "hidden"),
    "self_attn.v_proj": ("kv", "hidden"),
    "self_attn.o_proj": ("hidden", "heads"),
    "mlp.gate_proj": ("neurons", "hidden"),
    "mlp.up_proj": ("neurons", "hidden"),
    "mlp.down_proj": ("hidden", "neurons"),
}
"""The axes that a matrix of a layer writes, and reads."""
NORMS: Final = ("input_layernorm", "post_attention_layernorm")
NOISE: Final = 0.02
"""Standard deviation of random weights."""

Take = Callable[[str], Tensor | None]
"""A tensor of the small model by its name, in float32; None if it has no such tensor."""


@dataclass(frozen=True)
class Axis:
    """A small axis within a large one: the copies of index i lie at ``places[:, i]``."""

    places: Tensor
    size: int

    def write(self, weight: Tensor, big: Tensor) -> Tensor:
        """Put a matrix's rows (or a vector) into all copies' places."""
        for place in self.places:
            big[place] = weight.to(big.dtype)
        return big

    def read(self, weight: Tensor) -> Tensor:
        """A matrix whose columns read a share of each copy."""
        shares = [1.0]
        while len(shares) < len(self.places):
            largest = shares.pop(0)
            shares += [largest / 2, largest / 2]
        big = weight.new_zeros(*weight.shape[:-1], self.size)
        for place, share in zip(self.places, shares, strict=True):
            big[..., place] = weight * share
        return big


class Grower:
    """Makes the weights of a large model from those of a small one."""

    def __init__(
        self, config: Mapping[str, Any], big: Geometry, fill: Fill, dtype: torch.dtype, device: str
    ) -> None:
        """``config`` is the small model's ``config.json``.

        Raises `GrowError` when that model cannot be grown to ``big``.
        """
        small = check_fits(config, big)
        self.small, self.big, self.fill, self.dtype, self.device = small, big, fill, dtype, device
        self._config = dict(config)

        def repeated(size: int, big_size: int) -> Tensor:
            copies = big_size // size if fill == "copies" else 1
            return torch.arange(copies * size, device=device).view(copies, size)

        def within(outer: Tensor, size: int, inner: Tensor) -> Tensor:
            return (outer[:, :, None] * size + inner).flatten(1)

        # RoPE's pairs of a head are (i, i + half); pair i turns as fast as pair i * stretch of the larger head.
        stretch = big.head_dim // small.head_dim
        pairs = torch.arange(small.head_dim // 2, device=device) * stretch
        dims = torch.cat([pairs, pairs + big.head_dim // 2])
        kv = repeated(small.num_key_value_heads, big.num_key_value_heads)
        queries = within(kv, big.group, torch.arange(small.group, device=device))
        self._axes: dict[AxisName, Axis] = {
            "hidden": Axis(repeated(small.hidden_size, big.hidden_size), big.hidden_size),
            "neurons": Axis(repeated(small.intermediate_size, big.intermediate_size), big.intermediate_size),
            "kv": Axis(within(kv, big.head_dim, dims), big.num_key_value_heads * big.head_dim),
            "heads": Axis(within(queries, big.head_dim, dims), big.num_attention_heads * big.head_dim),
        }
        self._live_kv = within(kv, big.head_dim, torch.arange(big.head_dim, device=device)).flatten()
        self._live = self._axes["hidden"].places.numel() / big.hidden_size
        self._query_scale = math.sqrt(stretch)
        self._random = torch.Generator(device).manual_seed(0)

    def config(self) -> dict[str, Any]:
        """The large model's ``config.json``."""
        layer_types = {"layer_types": self.big.layer_types()} if self._config.get("layer_types") else {}
        return {
            **self._config,
            **self.big.as_config(),
            **layer_types,
            "rms_norm_eps": self._config["rms_norm_eps"] * self._live,
            # Copies are read in shares: the head is no longer the embedding.
            "tie_word_embeddings": False,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def layer(self, number: int, take: Take) -> Iterator[tuple[str, Tensor]]:
        """A layer's tensors by name; layers behind the small model's last one change nothing."""
        of_small = f"model.layers.{number % self.small.num_hidden_layers}"
        real = number < self.small.num_hidden_layers
        for norm in NORMS:
            weight = _needed(take, f"{of_small}.{norm}.weight")
            yield f"model.layers.{number}.{norm}.weight", self._norm(weight)
        for module in MODULES:
            weight = _needed(take, f"{of_small}.{module}.weight")
            name = f"model.layers.{number}.{module}"
            yield f"{name}.weight", self._linear(module, weight if real else None)
            bias = take(f"{of_small}.{module}.bias")
            if bias is not None:
                yield f"{name}.bias", self._bias(module, bias if real else torch.zeros_like(bias))

    def ends(self, take: Take) -> Iterator[tuple[str, Tensor]]:
        """What comes before the layers, and behind them."""
        hidden, embedding = self._axes["hidden"], _needed(take, "model.embed_tokens.weight")
        big = torch.zeros(len(embedding), hidden.size, device=self.device, dtype=self.dtype)
        for place in hidden.places:
            big[:, place] = embedding.to(self.dtype)
        yield "model.embed_tokens.weight", big
        del big
        yield "model.norm.weight", self._norm(_needed(take, "model.norm.weight"))
        head = embedding if self._config.get("tie_word_embeddings") else _needed(take, "lm_head.weight")
        yield "lm_head.weight", hidden.read(head.to(self.dtype))

    def low_rank(self, name: str, weight: Tensor) -> Tensor:
        """A matrix of a LoRA adapter by its name in PEFT's format; the rank stays.

        Raises `GrowError` when it belongs to none of a layer's projections.
        """
        *_, block, module, matrix, _ = ["", "", "", "", *name.split(".")]
        axes = MODULES.get(f"{block}.{module}")
        if axes is None or matrix not in ("lora_A", "lora_B"):
            raise GrowError(f"the adapter has {name}, and only LoRA of the layers' projections can be grown")
        rows, columns = (self._axes[axis] for axis in axes)
        if matrix == "lora_A":
            return columns.read(weight).to(self.dtype)
        big = torch.zeros(rows.size, weight.shape[1], device=self.device, dtype=self.dtype)
        return rows.write(self._scaled(module, weight), big)

    def _linear(self, module: str, weight: Tensor | None) -> Tensor:
        rows, columns = (self._axes[axis] for axis in MODULES[module])
        big = torch.zeros(rows.size, columns.size, device=self.device, dtype=self.dtype)
        # Nothing but the small model may write into the residual stream.
        if self.fill != "zero" and MODULES[module][0] != "hidden":
            idle = torch.ones(rows.size, device=self.device, dtype=torch.bool)
            if weight is not None:
                # Where a larger head has dimensions to spare, queries have noise: keys must be zero there.
                idle[self._live_kv if module.endswith("k_proj") else rows.places.flatten()] = False
            noise = torch.empty(int(idle.sum()), columns.size, device=self.device, dtype=self.dtype)
            big[idle] = noise.normal_(0, NOISE, generator=self._random)
        return big if weight is None else rows.write(columns.read(self._scaled(module, weight)), big)

    def _bias(self, module: str, bias: Tensor) -> Tensor:
        rows = self._axes[MODULES[module][0]]
        big = torch.zeros(rows.size, device=self.device, dtype=self.dtype)
        return rows.write(self._scaled(module, bias), big)

    def _norm(self, weight: Tensor) -> Tensor:
        big = torch.zeros(self.big.hidden_size, device=self.device, dtype=self.dtype)
        return self._axes["hidden"].write(weight * math.sqrt(self._live), big)

    def _scaled(self, module: str, weight: Tensor) -> Tensor:
        return weight * self._query_scale if module.endswith("q_proj") else weight


def _needed(take: Take, name: str) -> Tensor:
    tensor = take(name)
    if tensor is None:
        raise GrowError(f"the model has no tensor {name}")
    return tensor
