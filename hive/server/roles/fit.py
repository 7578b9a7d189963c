"""Whether an adapter is one of a model: of each matrix it changes, both must have the same sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

WEIGHTS: Final = "adapter_model.safetensors"
_MOST_HEADER: Final = 100_000_000
"""Bytes; the library's own limit."""
_PREFIX: Final = "base_model.model."
_SIDES: Final = {"lora_A": (1, "reads"), "lora_B": (0, "writes")}
"""The matrices of an adapter: which of the model's sizes (outputs, inputs) each of them shares, and its word."""


class UnfitAdapter(ValueError):
    """An adapter of another model; the message names the first matrix that differs, and what to do."""


def check_fits(name: str, adapter: Path, model: Path) -> None:
    """Compare an adapter in PEFT's format with a model's folder, by the headers of their files.

    Raises:
        UnfitAdapter: when it is not an adapter of that model, or nobody can tell.
    """
    ways_out = (
        f"put adapters of this model into {model / 'roles'}, name them by --lora-paths instead of --hive-roles, or "
        "leave --model-path out"
    )
    try:
        there = _shapes(sorted(model.glob("*.safetensors")))
        wanted = _shapes([adapter / WEIGHTS])
    except (OSError, ValueError) as error:
        raise UnfitAdapter(
            f"whether the adapter {name} fits {model} cannot be told: {error}; {ways_out}"
        ) from None
    if not there:
        raise UnfitAdapter(
            f"{model} is no folder with *.safetensors that the adapter {name} could be of; {ways_out}"
        )
    for tensor, shape in wanted.items():
        module, _, matrix = tensor.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        side = _SIDES.get(matrix)
        if side is None:
            continue
        size, (axis, verb) = shape[side[0]], side
        of_model = there.get(f"{module}.weight")
        if of_model is None:
            raise UnfitAdapter(f"the adapter {name} changes {module}, which {model} has not; {ways_out}")
        if of_model[axis] != size:
            raise UnfitAdapter(
                f"the adapter {name} is not one of {model}: {module} {verb} {size} values in the adapter, and "
                f"{of_model[axis]} in the model; {ways_out}"
            )


def _shapes(files: list[Path]) -> Mapping[str, list[int]]:
    """Sizes of all tensors by name. A file begins with the length of its header, 64 bits, and the header in JSON."""
    found: dict[str, list[int]] = {}
    for path in files:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MOST_HEADER:
                raise ValueError(f"{path} is no file of safetensors")
            header = json.loads(file.read(length))
        found |= {name: each["shape"] for name, each in header.items() if name != "__metadata__"}
    return found
