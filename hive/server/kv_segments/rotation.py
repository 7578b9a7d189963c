"""Rotary embeddings of a model, and keys turned from the position they were computed at to another one.

RoPE turns each pair of dimensions of a key by position * inverse frequency, and turns add up: a cached key of
position p is made one of position p + delta by another turn, of delta * inverse frequency.  YaRN also scales keys, by
a constant; cached keys have it already, so they are only turned.

That holds where the frequencies are the same at all lengths and in all layers.  Every other variant is refused.
Angles are computed in float64: at position 100,000 the steps of float32 are a hundredth of a radian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch


class UnsupportedRope(ValueError):
    """The positions of this model's keys cannot be changed after the fact; the message says why."""


@dataclass(frozen=True)
class Turn:
    """Turns of n tokens, one each; or one turn for any number of tokens (n = 1)."""

    cos: torch.Tensor
    """float32, ``[n, 1, rotary_dim // 2]``, as is ``sin``."""
    sin: torch.Tensor
    still: torch.Tensor
    """bool, ``[n, 1, 1]``: tokens that stay where they are. Those are copied, so that even -0.0 and NaN keep their
    bits."""
    interleaved: bool

    def of(self, keys: torch.Tensor) -> torch.Tensor:
        """Turn keys (``[..., n, heads, head_dim]``, computed in float32, returned in their dtype)."""
        half = self.cos.shape[-1]
        rotary = keys[..., : 2 * half]
        wide = rotary.float()
        if self.interleaved:
            first, second = wide[..., 0::2], wide[..., 1::2]
        else:
            first, second = wide[..., :half], wide[..., half:]
        pair = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        turned = torch.stack(pair, dim=-1).flatten(-2) if self.interleaved else torch.cat(pair, dim=-1)
        turned = torch.where(self.still, rotary, turned.to(keys.dtype))
        return torch.cat((turned, keys[..., 2 * half :]), dim=-1)


@dataclass(frozen=True, eq=False)
class Rope:
    """What turns the keys of all layers of a model."""

    inverse_frequencies: torch.Tensor
    """float64, ``[rotary_dim // 2]``, in radians per position."""
    head_dim: int
    """Dimensions of a key's head, of which the first ``rotary_dim`` are turned."""
    interleaved: bool = False
    """Whether a pair of dimensions lies side by side (GPT-J); else it is half of ``rotary_dim`` apart (GPT-NeoX)."""

    @property
    def rotary_dim(self) -> int:
        return 2 * self.inverse_frequencies.numel()

    @classmethod
    def of_config(cls, config: Any, *, interleaved: bool = False) -> Rope:
        """Rope of a model's Hugging Face config, as a mapping or as an object with attributes.

        Both ways of writing it are read: ``rope_parameters``, and ``rope_theta`` beside ``rope_scaling``.  Configs do
        not say whether pairs are interleaved.  Raises :class:`UnsupportedRope`.
        """
        parameters = _parameters(config)
        variant = _variant(parameters)
        heads = field_of(config, "num_attention_heads")
        head_dim = field_of(config, "head_dim") or field_of(config, "hidden_size") // heads
        rotary_dim = int(head_dim * parameters["partial_rotary_factor"])
        if rotary_dim < 2 or rotary_dim % 2:
            raise UnsupportedRope(
                f"RoPE turns pairs of dimensions, and this model's would turn {rotary_dim}."
            )
        theta = float(parameters["rope_theta"])
        plain = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
        try:
            return cls(_VARIANTS[variant](plain, theta, parameters), head_dim, interleaved)
        except (KeyError, TypeError) as error:
            raise UnsupportedRope(f"The config's RoPE of type {variant!r} is incomplete: {error}.") from error

    def to(self, device: torch.device) -> Rope:
        """The same on a device, where :meth:`turn` then waits for nothing."""
        return replace(self, inverse_frequencies=self.inverse_frequencies.to(device))

    def turn(self, delta: torch.Tensor | int) -> Turn:
        """By how much to turn keys whose positions grow by ``delta`` (integers, ``[n]``, or one for all tokens)."""
        frequencies = self.inverse_frequencies
        if not isinstance(delta, torch.Tensor):
            delta = torch.full((1,), delta, device=frequencies.device)
        delta = delta.to(frequencies.device)[:, None, None]
        angles = delta.double() * frequencies
        return Turn(angles.cos().float(), angles.sin().float(), delta == 0, self.interleaved)

    def rotate(self, keys: torch.Tensor, delta: torch.Tensor | int) -> torch.Tensor:
        """Keys (``[..., n, heads, head_dim]``) moved by ``delta`` positions each, which may be negative.

        Keys of bfloat16 are rounded once more: 0.2% of a key, each time that it is moved.
        """
        return self.to(keys.device).turn(delta).of(keys)


def field_of(config: Any, name: str, default: Any = None) -> Any:
    """A field of a config that is a mapping or an object."""
    if isinstance(config, Mapping):
        return config.get(name, default)
    return getattr(config, name, default)


def _parameters(config: Any) -> dict[str, Any]:
    """Everything that a config says about RoPE, under the names of ``rope_parameters``."""
    written = field_of(config, "rope_parameters") or field_of(config, "rope_scaling") or {}
    kinds = [value for value in written.values() if isinstance(value, Mapping)]
    if kinds:
        if any(kind != kinds[0] for kind in kinds):
            raise UnsupportedRope(f"This model's layers have different RoPE ({', '.join(written)}).")
        written = kinds[0]
    parameters = {name: value for name, value in written.items() if value is not None}
    for name, default in (("rope_theta", 10_000.0), ("partial_rotary_factor", 1.0)):
        if name not in parameters:
            value = field_of(config, name)
            parameters[name] = default if value is None else value
    original = "original_max_position_embeddings"
    for value in (
        field_of(config, original),  # Some models have it outside, and there it is right.
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
            f"Supported are {', '.join(_VARIANTS)}."
        )
    return str(variant)


def _default(plain: torch.Tensor, theta: float, parameters: Mapping[str, Any]) -> torch.Tensor:
    return plain


def _linear(plain: torch.Tensor, theta: float, parameters: Mapping[str, Any]) -> torch.Tensor:
    return plain / float(parameters["factor"])


def _llama3(plain: torch.Tensor, theta: float, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Long waves are stretched, short ones kept, and between the two is a ramp over the frequency."""
    low, high, factor = (float(parameters[f"{name}factor"]) for name in ("low_freq_", "high_freq_", ""))
    waves = float(parameters["original_max_position_embeddings"]) / (2 * math.pi) * plain
    kept = ((waves - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / factor * (1 - kept)


def _yarn(plain: torch.Tensor, theta: float, parameters: Mapping[str, Any]) -> torch.Tensor:
    """As ``llama3``, with the ramp over the number of the dimension (Peng et al., ICLR 2024, section 3.2)."""
    rotary_dim = 2 * plain.numel()

    def dimension(waves: float) -> float:
        """That which turns so often within the length of training, as a real number."""
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
