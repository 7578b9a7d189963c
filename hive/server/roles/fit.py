"""Checks that an adapter fits a model: each matrix that the adapter changes must have the same sizes in both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

WEIGHTS: Final = "adapter_model.safetensors"
_MOST_HEADER: Final = 100_000_000
"""In bytes; the safetensors library has the same limit."""
_PREFIX: Final = "base_model.model."
_SIDES: Final = {"lora_A": (1, "reads"), "lora_B": (0, "writes")}
"""By matrix of an adapter: the axis of the model's weight (outputs, inputs) that it shares, and the verb for errors."""


class UnfitAdapter(ValueError):
    """The adapter belongs to another model; the message names the first matrix that differs, and the fix."""


def check_fits(name: str, adapter: Path, model: Path) -> None:
    """Compare an adapter in PEFT's format with a model's folder, by the headers of their files.

    Raises:
        UnfitAdapter: if the adapter does not fit the model, or if the files cannot be read.
    """
    ways_out = (
        f"put adapters of this model into {model / 'roles'}, list them with --lora-paths instead of --hive-roles, or "
        "leave --model-path out"
    )
    try:
        there = _shapes(sorted(model.glob("*.safetensors")))
        wanted = _shapes([adapter / WEIGHTS])
    except (OSError, ValueError) as error:
        raise UnfitAdapter(
            f"cannot tell whether the adapter {name} fits {model}: {error}; {ways_out}"
        ) from None
    if not there:
        raise UnfitAdapter(f"{model} has no *.safetensors to compare the adapter {name} with; {ways_out}")
    for tensor, shape in wanted.items():
        module, _, matrix = tensor.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        side = _SIDES.get(matrix)
        if side is None:
            continue
        size, (axis, verb) = shape[side[0]], side
        of_model = there.get(f"{module}.weight")
        if of_model is None:
            raise UnfitAdapter(
                f"the adapter {name} changes {module}, which {model} does not have; {ways_out}"
            )
        if of_model[axis] != size:
            raise UnfitAdapter(
                f"the adapter {name} does not fit {model}: {module} {verb} {size} values in the adapter, and "
                f"{of_model[axis]} in the model; {ways_out}"
            )


def _shapes(files: list[Path]) -> Mapping[str, list[int]]:
    """Return the shapes of all tensors by name.

    A file starts with the length of its header, 64 bits, followed by the header in JSON.
    """
    found: dict[str, list[int]] = {}
    for path in files:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MOST_HEADER:
                raise ValueError(f"{path} is not a safetensors file")
            header = json.loads(file.read(length))
        found |= {name: each["shape"] for name, each in header.items() if name != "__metadata__"}
    return found
