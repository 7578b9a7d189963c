"""Reports as files: where they go and how much is to be in them, looked at before a run, as after an hour of it one
would learn too late that there is no way, and what all of them begin with."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from bench.logits_cache.machine import machine, versions


class HowMade(BaseModel):
    """What every report says of itself."""

    command: str
    """That makes it again."""
    versions: dict[str, str]
    machine: dict[str, str | int]
    seconds: float
    """Of the whole run, servers' starts included."""


def how_made(command: str, began: float) -> dict[str, Any]:
    """The fields of `HowMade`, for a run that began then (``time.monotonic()``) and ends now."""
    return {
        "command": command,
        "versions": versions(),
        "machine": machine(),
        "seconds": round(time.monotonic() - began, 1),
    }


def positive(text: str) -> int:
    """The value of an option that takes a number of things.

    Raises:
        ArgumentTypeError: where there would be none of them.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def not_writable(path: Path) -> str | None:
    """Make a file's folder if there is none; what is in the way, if the file cannot be written even so."""
    new = not path.exists()
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True)
        with path.open("ab"):
            pass
    except OSError as error:
        return error.strerror or str(error)
    if new:
        path.unlink()
    return None


def can_plot(console: Console) -> bool:
    """Whether there is a library to draw with; says so if not."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    console.print("no plots: matplotlib is not installed (it comes with hive\\[bench])")
    return False
