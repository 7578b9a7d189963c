"""The host memory and the device memory that a server holds."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ServerMemory:
    """Memory of the processes of the server that listens at a URL.

    SGLang's scheduler and detokenizer are children of the process that listens. Of a server elsewhere, or one whose
    processes belong to another user, nothing is known.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        pid = listening(parts.port) if parts.hostname in _LOOPBACK else None
        self._processes = [] if pid is None else _with_children(pid)

    def host_bytes(self) -> int | None:
        """Resident memory, added up over the processes: what they share is counted in each."""
        sizes = []
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                sizes.append(process.memory_info().rss)
        return sum(sizes) if sizes else None

    def device_bytes(self) -> int | None:
        """Memory of GPUs; None where there is none, or the driver does not tell whose it is, as in containers."""
        try:
            import pynvml  # type: ignore[import-untyped]

            pynvml.nvmlInit()
        except Exception:
            # Neither the package nor the driver need be there, and each is missed in ways of its own.
            return None
        pids = {process.pid for process in self._processes}
        try:
            devices = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            running = [
                each for device in devices for each in pynvml.nvmlDeviceGetComputeRunningProcesses(device)
            ]
            held = [each.usedGpuMemory for each in running if each.pid in pids]
        except pynvml.NVMLError:
            return None
        finally:
            pynvml.nvmlShutdown()
        return sum(held) if held and None not in held else None


def listening(port: int | None) -> int | None:
    """The process that listens at a port of this machine."""
    with contextlib.suppress(psutil.AccessDenied):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                pid: int | None = connection.pid
                return pid
    return None


def _with_children(pid: int) -> list[psutil.Process]:
    # Not its session: that of a server started in a terminal has all that was started there.
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []
