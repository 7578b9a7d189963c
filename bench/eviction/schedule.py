"""Who may start when: a trace's events in the order that a pool of some size allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bench.traces.prefix_tree import PrefixTree
from bench.traces.trace import Event, Trace


class PoolTooSmall(ValueError):
    """A request of the trace needs more than the whole pool."""


class Room:
    """Which requests a pool has room for at once, as SGLang's scheduler admits them without preemption.

    The prompts of all running requests, shared tokens counted once, and all their outputs must fit into `pool` tokens.
    What else lies in the pool can be evicted, so this is the same for every policy.
    """

    def __init__(self, trace: Trace, tree: PrefixTree, pool: int) -> None:
        self._trace, self._tree, self._pool = trace, tree, pool
        self._holders = [0] * len(tree.sizes)
        self._held = 0
        self.running: set[int] = set()

    def admit(self, request: int) -> bool:
        """Start a request if there is room. Raises `PoolTooSmall` when it does not fit into the empty pool."""
        path, holders = self._tree.prompts[request], self._holders
        new = self._tree.tokens(node for node in path if not holders[node])
        # The last prompt token is always computed, so it may lie in the pool twice for a moment.
        needed = new + len(self._trace.requests[request].output) + 1
        if self._held + needed > self._pool:
            if not self.running:
                raise PoolTooSmall(f"a request needs {needed:,} of a pool of {self._pool:,} tokens")
            return False
        self._held += needed
        for node in path:
            holders[node] += 1
        self.running.add(request)
        return True

    def leave(self, request: int) -> None:
        """A running request has finished."""
        path, holders = self._tree.prompts[request], self._holders
        self.running.remove(request)
        for node in path:
            holders[node] -= 1
        freed = self._tree.tokens(node for node in path if not holders[node])
        self._held -= freed + len(self._trace.requests[request].output) + 1


def schedule(trace: Trace, tree: PrefixTree, pool: int) -> list[Event]:
    """The events, where those that the pool has no room for come later.

    Requests are admitted first come first served. A request that had to wait beyond its recorded finish finishes as
    soon as it has started. Raises `PoolTooSmall` when a request does not fit into the empty pool.
    """
    room = Room(trace, tree, pool)
    waiting: deque[Event] = deque()
    overdue: set[int] = set()
    order: list[Event] = []

    def finish(request: int) -> None:
        order.append(("finish", request))
        room.leave(request)

    for event in trace.events:
        if event[0] == "finish":
            if event[1] in room.running:
                finish(event[1])
            else:
                overdue.add(event[1])
        else:
            waiting.append(event)
        while waiting:
            if waiting[0][0] == "end":
                order.append(waiting.popleft())
            elif waiting[0][0] == "start" and room.admit(waiting[0][1]):
                request = waiting.popleft()[1]
                assert isinstance(request, int)
                order.append(("start", request))
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
