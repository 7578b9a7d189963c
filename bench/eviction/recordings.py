"""Recorded traces as scenarios."""

from __future__ import annotations

from pathlib import Path

from bench.eviction.scenarios import Scenario
from bench.traces.pool import pools_of
from bench.traces.recording import SUFFIX, load_trace

POOL_SHARES = (0.4, 0.55, 0.7)
"""Pools, as parts of the hot working set."""


def recorded(path: Path) -> Scenario:
    """The scenario of a recorded trace.

    Its pools are parts of what its hot agents would like to keep, rounded up to hundreds, and none of them is too
    small for the longest request. Raises `ValueError` when the file is no trace.
    """
    trace = load_trace(path)
    if not trace.requests:
        raise ValueError(f"{path.name} has no requests")
    working_set, pools = pools_of(trace, POOL_SHARES)
    return Scenario(
        f"rtl-{path.name.removesuffix(SUFFIX)}",
        f"recorded: {len(trace.requests):,} requests, hot working set of {working_set:,} tokens",
        tuple(pools),
        path,
    )
