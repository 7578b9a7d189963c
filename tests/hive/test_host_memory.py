"""What the host has left, and what of it the Logits Cache may have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.host_memory import PLENTY, available_bytes, budget, give_back, headroom

MEMINFO = "MemTotal: 2000 kB\nMemFree: 100 kB\nMemAvailable: 1500 kB\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 1500 * 1024),
        ({"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": "max\n"}, 1500 * 1024),
        (
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": "1000000\n",
                "sys/fs/cgroup/memory.current": "900000\n",
                "sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 50000\n",
            },
            150_000,
        ),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1200\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 50\n",
            },
            0,
        ),
    ],
    ids=["unknown", "machine", "no limit", "container", "container of old"],
)
def test_the_least_of_machine_and_container_counts(
    tmp_path: Path, files: dict[str, str], free: int | None
) -> None:
    write(tmp_path, files)
    assert available_bytes(tmp_path) == free


def test_this_machine_says_what_it_has() -> None:
    free = available_bytes()
    assert free is None or 0 <= free < PLENTY
    give_back()


def test_nobody_shrinks_where_nobody_knows() -> None:
    assert headroom(2**40, lambda: None) == PLENTY
    assert headroom(100, lambda: 30) == -70


@given(st.integers(1, 1000), st.integers(0, 1000), st.integers(-2000, 2000))
def test_a_cache_gives_up_what_is_missing_and_takes_no_more_than_is_free(
    capacity: int, used: int, left: int
) -> None:
    allowed = budget(capacity, used, left)
    assert 0 <= allowed <= capacity
    if left < 0 and used:
        assert allowed < used or allowed == capacity < used
    assert allowed - used <= max(left, 0)
