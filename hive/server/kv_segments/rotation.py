"""The rotary embedding (RoPE) of a model, and rotations of keys from one position to another.

RoPE rotates each pair of dimensions of a key by position * inverse frequency, and rotations add up.  So a cached key
of position p becomes one of position p + delta by a further rotation of delta * inverse frequency.  YaRN also scales
keys by a constant; cached keys are scaled already, so they only need the rotation.

That holds if the frequencies are the same at all lengths and in all layers; every other variant is refused.  Angles are
computed in float64, because at position 100,000 the resolution of float32 is a hundredth of a radian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch


class UnsupportedRope(ValueError):
    """The keys of this model cannot be moved to other positions; the message says why."""


@dataclass(frozen=True)
class Rotation:
    """Rotations of n tokens, one for each; or one rotation for any number of tokens (n = 1)."""

    cos: torch.Tensor
    """float32, ``[n, 1, rotary_dim // 2]``, as is ``sin``."""
    sin: torch.Tensor
    unmoved: torch.Tensor
    """bool, ``[n, 1, 1]``: tokens with a delta of 0.  They are copied, so that even -0.0 and NaN keep their bits."""
    interleaved: bool

    def apply(self, keys: torch.Tensor) -> torch.Tensor:
        """Rotate keys (``[..., n, heads, head_dim]``) in float32; the result has their dtype."""
        half = self.cos.shape[-1]
        rotary = keys[..., : 2 * half]
        wide = rotary.float()
        if self.interleaved:
            first, second = wide[..., 0::2], wide[..., 1::2]
        else:
            first, second = wide[..., :half], wide[..., half:]
        pair = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        rotated = torch.stack(pair, dim=-1).flatten(-2) if self.interleaved else torch.cat(pair, dim=-1)
        rotated = torch.where(self.unmoved, rotary, rotated.to(keys.dtype))
        return torch.cat((rotated, keys[..., 2 * half :]), dim=-1)


@dataclass(frozen=True, eq=False)
class Rope:
    """The rotary embedding of all layers of a model."""

    inverse_frequencies: torch.Tensor
    """float64, ``[rotary_dim // 2]``, in radians per position."""
    head_dim: int
    """Dimensions of a head; the first ``rotary_dim`` of them are rotated."""
    interleaved: bool = False
    """Whether the dimensions of a pair are adjacent (GPT-J); else they are half of ``rotary_dim`` apart (GPT-NeoX)."""

    @property
    def rotary_dim(self) -> int:
        return 2 * self.inverse_frequencies.numel()

    @classmethod
    def from_config(cls, config: Any, *, interleaved: bool = False) -> Rope:
        """Return the rotary embedding of a model's Hugging Face config, a mapping or an object with attributes.

        Reads both notations: ``rope_parameters``, and ``rope_theta`` with ``rope_scaling``.  Configs do not say
        whether pairs are interleaved.

        Raises:
            UnsupportedRope: if keys of this model cannot be moved.
        """
        parameters = _parameters(config)
        variant = _variant(parameters)
        heads = field_of(config, "num_attention_heads")
        head_dim = field_of(config, "head_dim") or field_of(config, "hidden_size") // heads
        rotary_dim = int(head_dim * parameters["partial_rotary_factor"])
        if rotary_dim < 2 or rotary_dim % 2:
            raise UnsupportedRope(
                f"RoPE rotates pairs of dimensions, but this model has {rotary_dim} rotary ones."
            )
        theta = float(parameters["rope_theta"])
        plain = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
        try:
            return cls(_VARIANTS[variant](plain, theta, parameters), head_dim, interleaved)
        except (KeyError, TypeError) as error:
            raise UnsupportedRope(
                f"The config's RoPE parameters of type {variant!r} are incomplete: {error}."
            ) from error

    def to(self, device: torch.device) -> Rope:
        """Return a copy on a device, where :meth:`rotation` then needs no synchronisation."""
        return replace(self, inverse_frequencies=self.inverse_frequencies.to(device))

    def rotation(self, delta: torch.Tensor | int) -> Rotation:
        """Return the rotation of keys by ``delta`` positions (integers, ``[n]``, or one for all tokens)."""
        frequencies = self.inverse_frequencies
        if not isinstance(delta, torch.Tensor):
            delta = torch.full((1,), delta, device=frequencies.device)
        delta = delta.to(frequencies.device)[:, None, None]
        angles = delta.double() * frequencies
        return Rotation(angles.cos().float(), angles.sin().float(), delta == 0, self.interleaved)

    def rotate(self, keys: torch.Tensor, delta: torch.Tensor | int) -> torch.Tensor:
        """Return keys (``[..., n, heads, head_dim]``) moved by ``delta`` positions, which may be negative.

        Each move of a bfloat16 key rounds it once more, an error of 0.2%.
        """
        return self.to(keys.device).rotation(delta).apply(keys)


def field_of(config: Any, name: str) -> Any:
    """Return a field of a config that is a mapping or an object."""
    if isinstance(config, Mapping):
        return config.get(name)
    return getattr(config, name, None)


def _parameters(config: Any) -> dict[str, Any]:
    """Return all RoPE settings of a config, under the names of ``rope_parameters``."""
    written = field_of(config, "rope_parameters") or field_of(config, "rope_scaling") or {}
    kinds = [value for value in written.values() if isinstance(value, Mapping)]
    if kinds:
        if any(kind != kinds[0] for kind in kinds):
            raise UnsupportedRope(
                f"The layers of this model have different RoPE parameters ({', '.join(written)})."
            )
        written = kinds[0]
    parameters = {name: value for name, value in written.items() if value is not None}
    for name, default in (("rope_theta", 10_000.0), ("partial_rotary_factor", 1.0)):
        if name not in parameters:
            value = field_of(config, name)
            parameters[name] = default if value is None else value
    original = "original_max_position_embeddings"
    for value in (
        field_of(config, original),  # Some models have it outside of the RoPE parameters; that one is right.
        parameters.get(original),
        field_of(config, "max_position_embeddings"),
    ):
        if value is not None:
            parameters[original] = value
            break
    return parameters


def _variant(parameters: Mapping[str, Any]) -> str:
    variant = parameters.get("rope_type") or parameters.get("type") or "default"
    if "mrope_section" in parameters:
        variant = "mrope"
    elif parameters.get("use_fope"):
        variant = "fope"
    if variant not in _VARIANTS:
        raise UnsupportedRope(
            f"RoPE of type {variant!r} is not supported: its keys cannot be moved to other positions. "
            f"Supported types: {', '.join(_VARIANTS)}."
        )
    return str(variant)


def _default(plain: torch.Tensor, theta: float, parameters: Mapping[str, Any]) -> torch.Tensor:
    return plain


def _linear(plain: torch.Tensor, theta: float, parameters: Mapping[str, Any]) -> torch.Tensor:
    return plain / float(parameters["factor"])


def _llama3(plain: torch.Tensor, theta: float, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Stretch long waves, keep short ones, and interpolate between them by frequency."""
    low, high, factor = (float(parameters[f"{name}factor"]) for name in ("low_freq_", "high_freq_", ""))
    waves = float(parameters["original_max_position_embeddings"]) / (2 * math.pi) * plain
    kept = ((waves - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / factor * (1 - kept)


def _yarn(plain: torch.Tensor, theta: float, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Do as ``llama3``, but interpolate by dimension (Peng et al., ICLR 2024, section 3.2)."""
    rotary_dim = 2 * plain.numel()

    def dimension(waves: float) -> float:
        """Return the dimension with this many waves within the training length, as a real number."""
        length = parameters["original_max_position_embeddings"]
        return rotary_dim * math.log(length / (waves * 2 * math.pi)) / (2 * math.log(theta))

    first = dimension(parameters.get("beta_fast") or 32)
    last = dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    if first == last:
        last += 0.001
    numbers = torch.arange(plain.numel(), dtype=torch.float64)
    stretched = ((numbers - first) / (last - first)).clamp(0, 1)
    return plain * (1 - stretched) + plain / float(parameters["factor"]) * stretched


_VARIANTS: Mapping[str, Callable[[torch.Tensor, float, Mapping[str, Any]], torch.Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
