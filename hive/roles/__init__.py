"""The roles of the embedded model: LoRA adapters that make it good at one thing each.

- `proposer` and `valuer` play Game of 24: a next step, and what a position is worth;
- `patcher` repairs Verilog: which line is wrong, and how it should read.

Each is a folder here in PEFT's format, with ``metrics.json`` beside it: what it was taught and what it knew before and
after, of questions that it was never taught. ``scripts/train_roles.py`` makes them. ``--hive-roles`` of
``python -m hive.launch_server`` serves all of them beside the model itself; an agent asks for one by its name
(``model="proposer"``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, get_args

Role = Literal["proposer", "valuer", "patcher"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


def adapter(role: Role) -> Path:
    """The folder of a role's adapter.

    Raises:
        FileNotFoundError: when it is not installed.
    """
    folder = Path(__file__).parent / role
    if not (folder / "adapter_model.safetensors").is_file():
        raise FileNotFoundError(
            f"the adapter of the role {role} is not installed; scripts/train_roles.py --role {role} makes it"
        )
    return folder


def lora_flags(on_cpu: bool) -> list[str]:
    """The flags with which SGLang, Hive's or stock, serves all roles beside the embedded model.

    Raises:
        FileNotFoundError: when one of them is not installed.
    """
    paths = [f"{role}={adapter(role)}" for role in ROLES]
    # SGLang's default backend is written in Triton, which needs a GPU.
    backend = ["--lora-backend", "torch_native"] if on_cpu else []
    return ["--enable-lora", *backend, "--lora-paths", *paths]
