"""How large a KV pool is that cannot hold what the agents of a run would like to keep."""

from __future__ import annotations

from collections.abc import Iterable

from bench.traces.prefix_tree import PrefixTree
from bench.traces.recording import load_trace, recordings
from bench.traces.rounds import first_rounds
from bench.traces.trace import Trace
from bench.traces.working_set import hot_working_set

POOL_SHARE = 0.55
"""Of the hot working set."""


def pools_of(trace: Trace, shares: Iterable[float]) -> tuple[int, list[int]]:
    """The hot working set of a trace, and pools that are parts of it, in full hundreds of tokens.

    None of them is too small for the longest request.
    """
    working_set = hot_working_set(trace, PrefixTree(trace))
    least = max(len(request.prompt) + len(request.output) for request in trace.requests) + 1
    wanted = {max(least, round(share * working_set)) for share in shares}
    return working_set, sorted({-(-pool // 100) * 100 for pool in wanted})


def pool_of_repairs(patches: int) -> int:
    """Tokens, by the recording with the most requests: of its first so many patches in each of four sessions."""
    longest = max(map(load_trace, recordings()), key=lambda trace: len(trace.requests))
    _, (pool,) = pools_of(first_rounds(longest, patches), [POOL_SHARE])
    return pool
