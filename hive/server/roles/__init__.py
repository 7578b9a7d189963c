"""The roles of the embedded model: LoRA adapters that make it good at one thing each.

- `proposer` and `valuer` play Game of 24: a next step, and what a position is worth;
- `patcher` repairs Verilog: which line is wrong, and how it should read.

Each is a folder here in PEFT's format, with ``metrics.json`` beside it: what it was taught and what it knew before and
after, of questions that it was never taught. ``scripts/train_roles.py`` makes them. ``--hive-roles`` of
``python -m hive.launch_server`` serves all of them beside the model itself; an agent asks for one by its name
(``model="proposer"``). A model that brings adapters of its own, in a folder ``roles`` beside its weights, is served
with those.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, get_args

from hive.server.roles.fit import WEIGHTS, UnfitAdapter, check_fits

__all__ = ["ROLES", "Role", "UnfitAdapter", "adapter", "adapters_of", "lora_flags"]

Role = Literal["proposer", "valuer", "patcher"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


def adapter(role: Role) -> Path:
    """The folder of a role's adapter.

    Raises:
        FileNotFoundError: when it is not installed.
    """
    folder = Path(__file__).parent / role
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"the adapter of the role {role} is not installed; scripts/train_roles.py --role {role} makes it"
        )
    return folder


def lora_flags(on_cpu: bool, model: Path | None = None) -> list[str]:
    """The flags with which SGLang, Hive's or stock, serves all roles beside a model; None is the embedded one.

    Raises:
        FileNotFoundError: when one of them is not installed.
        UnfitAdapter: when one of them is not an adapter of that model.
    """
    paths = [f"{name}={folder}" for name, folder in adapters_of(model).items()]
    # SGLang's default backend is written in Triton, which needs a GPU.
    backend = ["--lora-backend", "torch_native"] if on_cpu else []
    return ["--enable-lora", *backend, "--lora-paths", *paths]


def adapters_of(model: Path | None) -> dict[str, Path]:
    """The adapters that are served beside a model: those in its folder ``roles``, otherwise the embedded model's.

    Raises:
        FileNotFoundError: when one of them is not installed.
        UnfitAdapter: when one of them is not an adapter of that model.
    """
    if model is None:
        return {role: adapter(role) for role in ROLES}
    own = {path.parent.name: path.parent for path in sorted(model.glob(f"roles/*/{WEIGHTS}"))}
    found = own or {role: adapter(role) for role in ROLES}
    for name, folder in found.items():
        check_fits(name, folder, model)
    return found
