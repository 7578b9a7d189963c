"""How much KV a trace's hot agents would like to keep."""

from __future__ import annotations

import statistics
from collections import Counter

from bench.traces.prefix_tree import PrefixTree
from bench.traces.trace import HOT_AGENTS, Trace


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
