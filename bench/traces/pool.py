"""How large a KV pool is that cannot hold what the agents of a run would like to keep."""

from __future__ import annotations

from bench.traces.prefix_tree import PrefixTree
from bench.traces.recording import load_trace, recordings
from bench.traces.rounds import first_rounds
from bench.traces.working_set import hot_working_set

POOL_SHARE = 0.55
"""Of the hot working set."""


def pool_of_repairs(patches: int) -> int:
    """Tokens, by the recording with the most requests: of its first so many patches in each of four sessions.

    No smaller than the longest request, in full hundreds.
    """
    longest = max(map(load_trace, recordings()), key=lambda trace: len(trace.requests))
    trace = first_rounds(longest, patches)
    least = max(len(request.prompt) + len(request.output) for request in trace.requests) + 1
    wanted = max(least, round(POOL_SHARE * hot_working_set(trace, PrefixTree(trace))))
    return -(-wanted // 100) * 100
