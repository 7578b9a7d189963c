"""Addresses of the sockets that events leave by: one for each data-parallel rank."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

OFF = "off"
AUTO = "auto"

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/]+):(?P<port>[0-9]{1,5})")
_EVERYWHERE = frozenset({"*", "0.0.0.0", "[::]"})


def check(endpoint: str) -> str:
    """``endpoint``, if it is one that events can leave by.

    Raises:
        ValueError: saying what it must look like.
    """
    tcp = _TCP.fullmatch(endpoint)
    if endpoint in (OFF, AUTO) or re.fullmatch(r"ipc://\S+", endpoint):
        return endpoint
    if tcp is None or not 1 <= int(tcp["port"]) <= 65535:
        raise ValueError(f"must be 'auto', 'off', ipc://PATH or tcp://HOST:PORT, got {endpoint!r}")
    return endpoint


def private() -> str:
    """An endpoint in a new folder that its owner alone may enter: the events tell what all clients do.

    A server that is killed cannot clean up after itself, so the folders of this user's dead processes go here.
    """
    parent = Path(tempfile.gettempdir())
    for folder in parent.glob("hive-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdecimal() and folder.stat().st_uid == os.getuid() and not _runs(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    return f"ipc://{tempfile.mkdtemp(prefix=f'hive-{os.getpid()}-')}/events"


def _runs(pid: int) -> bool:
    """Whether a process of this user is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def of_rank(endpoint: str, rank: int) -> str:
    """Where a rank publishes: the next ports of ``tcp://``, as with SGLang's KV events; a suffix of ``ipc://``."""
    tcp = _TCP.fullmatch(endpoint)
    if tcp is not None:
        return f"tcp://{tcp['host']}:{int(tcp['port']) + rank}"
    return endpoint if rank == 0 else f"{endpoint}.{rank}"


def to_connect(endpoint: str) -> str:
    """Where to find, on the same machine, what listens on ``endpoint``."""
    tcp = _TCP.fullmatch(endpoint)
    if tcp is not None and tcp["host"] in _EVERYWHERE:
        host = "[::1]" if tcp["host"] == "[::]" else "127.0.0.1"
        return f"tcp://{host}:{tcp['port']}"
    return endpoint
