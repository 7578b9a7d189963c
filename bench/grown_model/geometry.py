"""Sizes of models of the Llama family, and what fits into what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final


class GrowError(ValueError):
    """A model that cannot be grown as asked; the message says why."""


@dataclass(frozen=True)
class Geometry:
    """What a model's cost depends on, under the names of its ``config.json``."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Geometry:
        """The geometry in a ``config.json``."""
        try:
            heads = config["num_attention_heads"]
            return cls(
                config["hidden_size"],
                config["num_hidden_layers"],
                heads,
                config.get("num_key_value_heads") or heads,
                config.get("head_dim") or config["hidden_size"] // heads,
                config["intermediate_size"],
            )
        except KeyError as error:
            raise GrowError(f"the model's config.json has no field {error.args[0]}") from None

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    def layer_parameters(self) -> int:
        """Weights of one layer."""
        attention = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        return self.hidden_size * (attention + 3 * self.intermediate_size + 2)

    def parameters(self, vocabulary: int) -> int:
        """Weights of a model with an embedding and a head of its own."""
        return self.num_hidden_layers * self.layer_parameters() + (2 * vocabulary + 1) * self.hidden_size

    def as_config(self) -> dict[str, int]:
        """Its fields in ``config.json``."""
        return asdict(self)

    def layer_types(self) -> list[str]:
        """Another field, which some families have."""
        return [_FULL] * self.num_hidden_layers


PRESETS: Final[Mapping[str, Geometry]] = {
    "llama-8b": Geometry(4096, 32, 32, 8, 128, 14336),
    # Llama-3.2-1B has 16 layers, and the embedded model 30: as many weights, in layers that are narrower.
    "1b": Geometry(1536, 32, 24, 8, 64, 6144),
    # For tries on a CPU: hardly dearer than the embedded model.
    "tiny": Geometry(768, 31, 12, 4, 64, 1792),
}
"""Llama-3.1-8B, less its vocabulary; about what Llama-3.2-1B costs; and a little more than the embedded model."""

_FAMILIES: Final = frozenset({"llama", "mistral", "qwen2"})
_FULL: Final = "full_attention"
_SCALED_BY_FREQUENCY: Final = frozenset({"default", "linear", "llama3"})
"""Scalings of RoPE that depend on a pair's frequency alone, whatever the size of its head."""


def check_fits(config: Mapping[str, Any], big: Geometry) -> Geometry:
    """The geometry of the model with this ``config.json``, which can be grown to ``big``.

    Raises `GrowError`, naming the field, with both sizes.
    """
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise GrowError(
            f"the model's config.json has model_type {family!r}; those that can be grown are {sorted(_FAMILIES)}"
        )
    small = Geometry.of(config)
    for name, size in small.as_config().items():
        if size > big.as_config()[name]:
            raise GrowError(f"{name} is {size} in the model, and {big.as_config()[name]} in the geometry")
    if small.group > big.group:
        raise GrowError(
            f"{small.group} query heads share a key-value head in the model, and {big.group} in the geometry "
            "(num_attention_heads / num_key_value_heads)"
        )
    if big.hidden_size % big.num_attention_heads:
        # The library refuses such a configuration, though nothing depends on it.
        raise GrowError(f"hidden_size {big.hidden_size} is no multiple of {big.num_attention_heads} heads")
    if big.head_dim % small.head_dim:
        raise GrowError(f"head_dim {big.head_dim} is no multiple of the model's {small.head_dim}")
    if kinds := set(config.get("layer_types") or ()) - {_FULL}:
        raise GrowError(f"the model has layers of another kind than {_FULL}: {sorted(kinds)}")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    if big.head_dim != small.head_dim and scaling not in _SCALED_BY_FREQUENCY:
        raise GrowError(
            f"RoPE scaled by {scaling!r} depends on head_dim; choose a geometry whose head_dim is {small.head_dim}"
        )
    return small
