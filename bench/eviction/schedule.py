"""Who may start when: a trace's events in the order that a pool of some size allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bench.traces.prefix_tree import PrefixTree
from bench.traces.trace import Event, Trace


class PoolTooSmall(ValueError):
    """A request of the trace needs more than the whole pool."""


def schedule(trace: Trace, tree: PrefixTree, pool: int) -> list[Event]:
    """The events, where those that the pool has no room for come later.

    Requests are admitted first come first served, as by SGLang's scheduler without preemption: when the prompts of
    all running ones, shared tokens counted once, and all their outputs fit into `pool` tokens. What else lies in the
    pool can be evicted, so this is the same for every policy. A request that had to wait beyond its recorded finish
    finishes as soon as it has started. Raises `PoolTooSmall` when a request does not fit into the empty pool.
    """
    holders = [0] * len(tree.sizes)
    held = 0
    waiting: deque[Event] = deque()
    running: set[int] = set()
    overdue: set[int] = set()
    order: list[Event] = []

    def admit(request: int) -> bool:
        nonlocal held
        new = tree.tokens(node for node in tree.prompts[request] if not holders[node])
        # The last prompt token is always computed, so it may lie in the pool twice for a moment.
        needed = new + len(trace.requests[request].output) + 1
        if held + needed > pool:
            if not running:
                raise PoolTooSmall(f"a request needs {needed:,} of a pool of {pool:,} tokens")
            return False
        held += needed
        for node in tree.prompts[request]:
            holders[node] += 1
        running.add(request)
        order.append(("start", request))
        return True

    def finish(request: int) -> None:
        nonlocal held
        order.append(("finish", request))
        running.remove(request)
        for node in tree.prompts[request]:
            holders[node] -= 1
        freed = tree.tokens(node for node in tree.prompts[request] if not holders[node])
        held -= freed + len(trace.requests[request].output) + 1

    for event in trace.events:
        if event[0] == "finish":
            if event[1] in running:
                finish(event[1])
            else:
                overdue.add(event[1])
        else:
            waiting.append(event)
        while waiting:
            if waiting[0][0] == "end":
                order.append(waiting.popleft())
            elif waiting[0][0] == "start" and admit(waiting[0][1]):
                request = waiting.popleft()[1]
                assert isinstance(request, int)
                if request in overdue:
                    finish(request)
            else:
                break
    return order


def most_running(events: Sequence[Event]) -> int:
    """How many requests run at once, at the most."""
    most = now = 0
    for kind, _ in events:
        now += {"start": 1, "finish": -1, "end": 0}[kind]
        most = max(most, now)
    return most
