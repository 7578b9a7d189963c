"""Model folders in Hugging Face's format, written a few layers at a time."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench.grown_model.geometry import Geometry, GrowError
from bench.grown_model.grower import Fill, Grower, Take

STAMP: Final = "grown.json"
"""Written last: what a folder was grown from. Without it a folder is none of ours, or not whole."""
VERSION: Final = 1
"""Part of the stamp: raise it whenever the weights that are written change."""
SHARD_BYTES: Final = 900_000_000
"""Memory that a shard takes, at the most; a layer at the least."""
_WEIGHTS: Final = "adapter_model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


@dataclass(frozen=True)
class Plan:
    """What to grow, and to which geometry."""

    source: Path
    """Folder of the small model."""
    adapters: Mapping[str, Path]
    """Folders of its LoRA adapters in PEFT's format, by name."""
    preset: str
    big: Geometry
    fill: Fill = "copies"
    dtype: torch.dtype = torch.bfloat16
    device: str = "cpu"

    def small_config(self) -> dict[str, Any]:
        """The small model's ``config.json``. Raises `GrowError` when there is none."""
        path = self.source / "config.json"
        if not path.is_file():
            raise GrowError(f"{self.source} is no model's folder: it has no config.json")
        config: dict[str, Any] = json.loads(path.read_text())
        return config

    def stamp(self) -> dict[str, Any]:
        """What tells this plan's result from all others'."""
        digest = hashlib.sha256()
        files = [self.source / "config.json", *sorted(self.source.glob("*.safetensors"))]
        for path in [*files, *(folder / _WEIGHTS for folder in self.adapters.values())]:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return {
            "version": VERSION,
            "preset": self.preset,
            "geometry": self.big.as_config(),
            "fill": self.fill,
            "dtype": str(self.dtype).removeprefix("torch."),
            "adapters": list(self.adapters),
            "source": digest.hexdigest(),
        }

    def size(self) -> int:
        """Bytes of the weights."""
        return self.big.parameters(self.small_config()["vocab_size"]) * self.dtype.itemsize


def grow(plan: Plan, out: Path, say: Callable[[str], None] = print) -> bool:
    """Write the model into a new folder, its adapters into ``roles`` there; False if the folder holds it already.

    Raises `GrowError` when the model does not fit, the folder holds something else, or the disk is too small.
    """
    grower = Grower(plan.small_config(), plan.big, plan.fill, plan.dtype, plan.device)
    for name, folder in plan.adapters.items():
        if not (folder / _WEIGHTS).is_file():
            raise GrowError(f"the adapter {name} has no {_WEIGHTS} in {folder}")
    stamp = plan.stamp()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        known = _read_stamp(out)
        if known == stamp:
            return False
        what = "something that was not grown" if known is None else _difference(known, stamp)
        raise GrowError(f"{out} holds {what}; give another folder, or delete it")
    size, free = plan.size(), shutil.disk_usage(_existing(out)).free
    say(f"{plan.preset}: {size / 1e9:.2f} GB of weights to {out}, where {free / 1e9:.0f} GB are free")
    if size * 1.02 > free:
        raise GrowError(f"it takes {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free for {out}")
    unfinished = out.with_name(f".{out.name}.part")
    # Whatever is there was left by a run that was killed.
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _write_model(plan.source, unfinished, grower)
        for name, folder in plan.adapters.items():
            _write_adapter(folder, unfinished / "roles" / name, grower)
        (unfinished / STAMP).write_text(json.dumps(stamp, indent=1) + "\n")
        if out.exists():
            out.rmdir()
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return True


def _write_model(source: Path, out: Path, grower: Grower) -> None:
    take = _reader(source, grower.device)
    layers = max(1, SHARD_BYTES // (grower.big.layer_parameters() * grower.dtype.itemsize))
    begins = range(0, grower.big.num_hidden_layers, layers)
    count = len(begins) + 1
    index: dict[str, str] = {}

    def write(number: int, tensors: Iterator[tuple[str, Tensor]]) -> None:
        name = f"model-{number:05d}-of-{count:05d}.safetensors"
        index.update(dict.fromkeys(_save(dict(tensors), out / name), name))

    write(1, grower.ends(take))
    for number, begin in enumerate(begins, 2):
        numbers = range(begin, min(begin + layers, grower.big.num_hidden_layers))
        write(number, (each for layer in numbers for each in grower.layer(layer, take)))
    (out / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}, indent=1) + "\n")
    for file in source.iterdir():
        if file.is_file() and file.suffix not in (".safetensors", ".bin") and file.name != _INDEX:
            shutil.copyfile(file, out / file.name)
    (out / "config.json").write_text(json.dumps(grower.config(), indent=2) + "\n")


def _write_adapter(source: Path, out: Path, grower: Grower) -> None:
    out.mkdir(parents=True)
    small = load_file(source / _WEIGHTS)
    tensors = {
        name: grower.low_rank(name, weight.to(grower.device, torch.float32)) for name, weight in small.items()
    }
    _save(tensors, out / _WEIGHTS)
    config = json.loads((source / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _save(tensors: dict[str, Tensor], path: Path) -> list[str]:
    names = list(tensors)
    # One after the other: memory of a device that was copied from goes at once.
    on_host = {name: tensors.pop(name).contiguous().cpu() for name in names}
    save_file(on_host, path, {"format": "pt"})
    # It is written for its owner alone; a shared folder is read by others, too.
    path.chmod(0o644)
    return names


def _reader(folder: Path, device: str) -> Take:
    """The tensors of a folder by name, read from disk when they are asked for."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise GrowError(f"{folder} has no weights in the format of safetensors")
    try:
        files: list[Any] = [safe_open(path, "pt") for path in paths]
    except SafetensorError as error:
        raise GrowError(f"the weights in {folder} cannot be read: {error}") from None
    where = {name: file for file in files for name in list(file.keys())}

    def take(name: str) -> Tensor | None:
        if name not in where:
            return None
        tensor: Tensor = where[name].get_tensor(name).to(device, torch.float32)
        return tensor

    return take


def _read_stamp(folder: Path) -> dict[str, Any] | None:
    path = folder / STAMP
    if not path.is_file():
        return None
    stamp: dict[str, Any] = json.loads(path.read_text())
    return stamp


def _difference(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    differs = [name for name in wanted if known.get(name) != wanted[name]]
    # The preset says it in a word.
    told = [name for name in differs if name != "source" and not (name == "geometry" and "preset" in differs)]
    if not told:
        return "what was grown from another model"
    return "a grown model with " + ", ".join(
        f"{each} {known.get(each)!r} instead of {wanted[each]!r}" for each in told
    )


def _existing(path: Path) -> Path:
    """The nearest folder above that exists."""
    return next(each for each in (path, *path.absolute().parents) if each.is_dir())
