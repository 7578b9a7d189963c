"""How much KV the hot agents of a trace would like to keep, and pools that cannot hold all of it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable

from bench.traces.prefix_tree import PrefixTree
from bench.traces.recording import load_trace, recordings
from bench.traces.trace import HOT_AGENTS, Trace, first_rounds

POOL_SHARE = 0.55
"""Of the hot working set."""


def hot_working_set(trace: Trace, tree: PrefixTree) -> int:
    """Tokens, shared ones counted once, of what each hot agent asked last in each live session.

    It grows and shrinks as sessions come and go; this is its median over the starts of all requests. A session lives
    until it ends, or until its last request has finished where no end was recorded.
    """
    latest: dict[tuple[str | None, str], int] = {}
    holders: Counter[int] = Counter()
    sizes: list[int] = []
    held = 0

    def hold(request: int, sign: int) -> int:
        """How much more, or less, is held now."""
        changed = 0
        for node in tree.kept[request]:
            before = holders[node]
            holders[node] += sign
            if (before == 0) != (holders[node] == 0):
                changed += sign * tree.sizes[node]
        return changed

    ended = {session for kind, session in trace.events if kind == "end"}
    last = {request.session: number for number, request in enumerate(trace.requests)}
    for event in trace.events:
        over: str | None = None
        if event[0] == "start":
            request = trace.requests[event[1]]
            if request.agent in HOT_AGENTS:
                key = (request.session, request.agent)
                if key in latest:
                    held += hold(latest[key], -1)
                latest[key] = event[1]
                held += hold(event[1], 1)
            sizes.append(held)
        elif event[0] == "end":
            over = event[1]
        elif (
            trace.requests[event[1]].session not in ended
            and last[trace.requests[event[1]].session] == event[1]
        ):
            over = trace.requests[event[1]].session
        if over is not None:
            for key in [key for key in latest if key[0] == over]:
                held += hold(latest.pop(key), -1)
    return round(statistics.median(sizes))


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
