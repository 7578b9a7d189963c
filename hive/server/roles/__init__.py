"""The roles of the embedded model: LoRA adapters, each trained for one task.

- `proposer` and `valuer` play Game of 24: one proposes the next step, the other values a position;
- `patcher` repairs Verilog: it names the wrong line and its correction.

Each is a folder in PEFT's format.  Its ``metrics.json`` records the training task, and the accuracy before and after
training on questions that were held out.  ``scripts/train_roles.py`` trains the roles.  ``python -m hive.launch_server
--hive-roles`` serves all of them besides the model itself; an agent selects one by its name (``model="proposer"``).  If
a model has a folder ``roles`` beside its weights, the adapters in it are served instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, get_args

from hive.server.roles.fit import WEIGHTS, UnfitAdapter, check_fits

__all__ = ["ROLES", "Role", "UnfitAdapter", "adapter", "adapters_of", "lora_flags"]

Role = Literal["proposer", "valuer", "patcher"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


def adapter(role: Role) -> Path:
    """Return the folder of a role's adapter.

    Raises:
        FileNotFoundError: if it is not installed.
    """
    folder = Path(__file__).parent / role
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"the adapter of the role {role} is not installed; scripts/train_roles.py --role {role} makes it"
        )
    return folder


def lora_flags(on_cpu: bool, model: Path | None = None) -> list[str]:
    """Return the flags for SGLang, patched or not, to serve all roles besides a model (None: the embedded one).

    Raises:
        FileNotFoundError: if an adapter is not installed.
        UnfitAdapter: if an adapter does not fit the model.
    """
    paths = [f"{name}={folder}" for name, folder in adapters_of(model).items()]
    # SGLang's default backend uses Triton, which needs a GPU.
    backend = ["--lora-backend", "torch_native"] if on_cpu else []
    return ["--enable-lora", *backend, "--lora-paths", *paths]


def adapters_of(model: Path | None) -> dict[str, Path]:
    """Return the adapters to serve besides a model: those in its folder ``roles``, or else the embedded model's.

    Raises:
        FileNotFoundError: if an adapter is not installed.
        UnfitAdapter: if an adapter does not fit the model.
    """
    if model is None:
        return {role: adapter(role) for role in ROLES}
    own = {path.parent.name: path.parent for path in sorted(model.glob(f"roles/*/{WEIGHTS}"))}
    found = own or {role: adapter(role) for role in ROLES}
    for name, folder in found.items():
        check_fits(name, folder, model)
    return found
