"""What is left of the host's memory, and how much of it the Logits Cache may have.

A cache is what a server can do without, and what should go first when memory runs out: the kernel would kill a whole
process.  The budget is asked for every few hundred steps, never by token, and all tensor-parallel ranks take the
smallest one (``sglang_patches.hooks.scheduler``), since they must keep the same rows.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"),
)
"""Of cgroup v2 and v1: limit, use, and what of the use is page cache that the kernel takes back first."""

PLENTY = 2**62
"""More bytes than any machine has."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this machine, or the container, still has to give; None where neither says.

    ``root`` is where ``proc`` and ``sys`` are found.  In a container the files of its own group are at the top.
    """
    meminfo = _lines(root / "proc/meminfo")
    found = [int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:")]
    for folder in (root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"):
        for limit_name, use_name, stat_name, reclaimable in _CGROUP_FILES:
            limit, use = (_number(folder / name) for name in (limit_name, use_name))
            if limit is None or use is None:
                continue
            cached = [
                line.split()[1] for line in _lines(folder / stat_name) if line.split()[0] == reclaimable
            ]
            found.append(max(0, limit - use + int(cached[0] if cached else 0)))
    return min(found, default=None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number in a file; None where there is none, as for ``max``."""
    with contextlib.suppress(ValueError, OSError):
        return int(path.read_text())
    return None


def headroom(least_free: int, read: Callable[[], int | None] = available_bytes) -> int:
    """Free bytes above a mark, negative below it; :data:`PLENTY` where nobody knows what is free."""
    free = read()
    return PLENTY if free is None else free - least_free


def budget(capacity: int, used: int, headroom: int) -> int:
    """What a cache that holds ``used`` bytes may hold: as much more, or less, as is free above the mark.

    From 0 to ``capacity``.
    """
    return min(capacity, max(0, used + headroom))


def give_back() -> None:
    """Have the allocator return freed memory to the system, where it is one that can be told to (glibc)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def settle() -> None:
    """Have the garbage collector pass by whatever the process has by now.

    Its modules and models are a million objects that stay for good.  Looking through them again and again shows in what
    short requests cost.
    """
    gc.collect()
    gc.freeze()
