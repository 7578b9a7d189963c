"""The host's free memory, and how much of it the Logits Cache may use.

A server can do without its cache, so the cache should shrink when memory runs out: otherwise the kernel kills a whole
process.  The budget is computed every few hundred steps.  All tensor-parallel ranks take the smallest one
(``sglang_patches.hooks.scheduler``), because they must keep the same rows.
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
"""For cgroup v2 and v1: files of the limit and the use, and where to find the page cache, which counts as free."""

PLENTY = 2**62
"""More bytes than any machine has: stands for an unknown amount of free memory."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that is free for this machine or container, in bytes; None if it is unknown.

    ``root`` is the folder of ``proc`` and ``sys``.  A container finds the files of its own cgroup at the top.
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
    """Return the number in a file; None if it has none, such as ``max``."""
    with contextlib.suppress(ValueError, OSError):
        return int(path.read_text())
    return None


def headroom(least_free: int, read: Callable[[], int | None] = available_bytes) -> int:
    """Return free bytes above ``least_free``, negative below it; :data:`PLENTY` if the free memory is unknown."""
    free = read()
    return PLENTY if free is None else free - least_free


def budget(capacity: int, used: int, headroom: int) -> int:
    """Return how many bytes a cache that uses ``used`` may use, given the free bytes above the limit.

    The result is from 0 to ``capacity``.
    """
    return min(capacity, max(0, used + headroom))


def give_back() -> None:
    """Ask the allocator (glibc) to return freed memory to the system."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def freeze_objects() -> None:
    """Exclude all present objects from garbage collection, and turn it on.

    The modules and models of a process are a million objects that live forever.  To scan them again and again costs a
    measurable part of a short request.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
