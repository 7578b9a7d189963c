"""The machine and the command, for reports: without names of hosts, folders and addresses."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PACKAGES = ("hive", "sglang", "torch", "numpy")


def machine() -> dict[str, str | int]:
    """The kind of machine and what it has of it."""
    import torch

    if torch.cuda.is_available():
        return {"kind": "gpu", "name": torch.cuda.get_device_name(0), "gpus": torch.cuda.device_count()}
    return {"kind": "cpu", "architecture": platform.machine(), "cores": len(os.sched_getaffinity(0))}


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Of Python and of the packages that the numbers depend on."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def public_command(arguments: Sequence[str], module: str) -> str:
    """The command line: of a path its last part, of a URL nothing; also where they stand in flags within a word."""
    return shlex.join(["python", "-m", module, *(_public(text) for text in arguments)])


def _public(text: str) -> str:
    # Several flags may stand in one word, for a server that the bench starts.
    return " ".join(_public_word(word) for word in text.split(" "))


def _public_word(word: str) -> str:
    flag, equals, value = word.rpartition("=")
    if "://" in value:
        value = "URL"
    elif "/" in value:
        value = Path(value).name
    return f"{flag}{equals}{value}"
