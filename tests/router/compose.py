"""The services of ``docker/compose.yaml``: the tests start their commands, and look them over."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DOCKER = Path(__file__).parents[2] / "docker"
SERVERS = ("server-1", "server-2")
ROUTER = "router"

_ADDRESS = ("--host", "--port")


class Command(NamedTuple):
    """What a service runs: ``python -m MODULE --host 0.0.0.0 --port PORT FLAGS``."""

    module: str
    flags: tuple[str, ...]
    """Without its address."""
    port: int


@cache
def compose(name: str = "compose.yaml") -> dict[str, Any]:
    """A compose file; merge keys and anchors are resolved."""
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())
    return loaded


def command(service: str, name: str = "compose.yaml") -> Command:
    """The command of a service that runs a Python module."""
    python, option, module, *flags = compose(name)["services"][service]["command"]
    assert (python, option) == ("python", "-m")
    assert all(isinstance(flag, str) for flag in flags), "YAML makes numbers of what is not quoted"
    address = {}
    for flag in _ADDRESS:
        at = flags.index(flag)
        address[flag] = flags[at + 1]
        del flags[at : at + 2]
    assert address["--host"] == "0.0.0.0"
    return Command(module, tuple(flags), int(address["--port"]))


def with_value(flags: tuple[str, ...], flag: str, value: str) -> tuple[str, ...]:
    """The flags, with another value for one of them."""
    at = flags.index(flag) + 1
    return (*flags[:at], value, *flags[at + 1 :])
