"""The processes of a server."""

from __future__ import annotations

import psutil

from hive.server.server_process import ServerProcess


def scheduler_of(server: ServerProcess) -> psutil.Process:
    """The process that runs the model."""
    (found,) = (
        child
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "sglang::scheduler" in " ".join(child.cmdline())
    )
    return found
