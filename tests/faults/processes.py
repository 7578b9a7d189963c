"""The processes of a server: who they are, and their memory."""

from __future__ import annotations

from pathlib import Path

import psutil

from hive.server.server_process import ServerProcess

_CHUNK = 2**24


def scheduler_of(server: ServerProcess) -> psutil.Process:
    """The process that runs the model."""
    (found,) = (
        child
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "sglang::scheduler" in " ".join(child.cmdline())
    )
    return found


class ProcessMemory:
    """What a process has on its heap, as the kernel shows it to one that may trace it."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def find(self, pattern: bytes) -> list[int]:
        """The addresses of a pattern."""
        found: list[int] = []
        with (self._folder / "mem").open("rb", buffering=0) as memory:
            for start, end in self._heaps():
                at = start
                while at < end:
                    memory.seek(at)
                    try:
                        chunk = memory.read(min(_CHUNK, end - at))
                    except OSError:
                        break  # a page that is only reserved
                    if not chunk:
                        break
                    place = chunk.find(pattern)
                    while place >= 0:
                        found.append(at + place)
                        place = chunk.find(pattern, place + 1)
                    # A pattern may lie across two chunks.
                    last = at + len(chunk) >= end
                    at += len(chunk) if last else len(chunk) - len(pattern) + 1
        return found

    def flip(self, address: int) -> None:
        """Change the lowest bit of one byte."""
        with (self._folder / "mem").open("r+b", buffering=0) as memory:
            memory.seek(address)
            (byte,) = memory.read(1)
            memory.seek(address)
            memory.write(bytes([byte ^ 1]))

    def _heaps(self) -> list[tuple[int, int]]:
        """Ranges that the process has allocated: written to, and of no file."""
        ranges = []
        for line in (self._folder / "maps").read_text().splitlines():
            span, rights, _, _, inode, *name = line.split()
            if rights.startswith("rw") and inode == "0" and (not name or name == ["[heap]"]):
                start, end = (int(part, 16) for part in span.split("-"))
                ranges.append((start, end))
        return ranges
