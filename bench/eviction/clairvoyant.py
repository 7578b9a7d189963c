"""The bound: a cache that knows the future (Belady's MIN), token by token."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from bench.eviction.outcome import Outcome
from bench.traces.prefix_tree import PrefixTree
from bench.traces.trace import Event, Trace

_NEVER = 1 << 62


def clairvoyant(trace: Trace, tree: PrefixTree, events: Sequence[Event], pool: int) -> Outcome:
    """Replay a schedule, always evicting the tokens whose next use is furthest away.

    As in the radix cache, a token is found only if all before it are, prompts and outputs always enter the cache, and
    nothing that a running request needs is evicted. Unlike there, tokens leave one by one.

    That is the least prefill there can be, but for tokens that come for nothing before their next use, because the
    model happens to write them once more or a prompt ends in them: these could leave sooner.
    `events` are those of the trace, in an order that `pool` (in tokens) allows.
    """
    return _Clairvoyant(trace, tree, events, pool).run()


class _Clairvoyant:
    def __init__(self, trace: Trace, tree: PrefixTree, events: Sequence[Event], pool: int) -> None:
        self.trace, self.tree, self.events, self.pool = trace, tree, events, pool
        self.outcome = Outcome()
        nodes = len(tree.sizes)
        self.cached = [0] * nodes
        """Tokens of each node that are in the pool: its first ones."""
        self.holders = [0] * nodes
        """Running requests that need the node."""
        self.used = 0
        self.next_use = [_NEVER] * nodes
        self.uses: list[list[int]] = [[] for _ in range(nodes)]
        """When prompts with each node start, the next one last."""
        starts = [request for kind, request in events if kind == "start" and isinstance(request, int)]
        for time, request in reversed(list(enumerate(starts))):
            for node in _found(tree.prompts[request]):
                self.uses[node].append(time)
        for node, uses in enumerate(self.uses):
            if uses:
                self.next_use[node] = uses[-1]
        self.victims: list[tuple[int, int, int]] = []
        """A heap of what may be evicted, as (-next use, -end, node), with entries that no longer hold. What follows a
        token is never used earlier than the token, so whatever is first has nothing behind it in the pool."""

    def run(self) -> Outcome:
        for event in self.events:
            if event[0] == "start":
                self._start(event[1])
            elif event[0] == "finish":
                self._finish(event[1])
        assert self.used == sum(self.cached) <= self.pool
        return self.outcome

    def _start(self, request: int) -> None:
        path = self.tree.prompts[request]
        found = 0
        for node in _found(path):
            found += self.cached[node]
            if self.cached[node] < self.tree.sizes[node]:
                break
        self.outcome.count(
            self.trace.requests[request].agent, len(self.trace.requests[request].prompt), found
        )
        for node in _found(path):
            uses = self.uses[node]
            uses.pop()
            self.next_use[node] = uses[-1] if uses else _NEVER
        self._hold(path)
        self._fill(path)

    def _finish(self, request: int) -> None:
        path = self.tree.kept[request]
        self._hold(path)
        self._fill(path)
        self._release(path)
        self._release(self.tree.prompts[request])

    def _hold(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.holders[node] += 1

    def _release(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.holders[node] -= 1
            if not self.holders[node]:
                self._offer(node)

    def _offer(self, node: int) -> None:
        heapq.heappush(self.victims, (-self.next_use[node], -self.tree.ends[node], node))

    def _fill(self, path: Sequence[int]) -> None:
        """Bring all tokens of some held nodes into the pool."""
        missing = self.tree.tokens(path) - sum(self.cached[node] for node in path)
        self._evict(self.used + missing - self.pool)
        self.used += missing
        for node in path:
            self.cached[node] = self.tree.sizes[node]

    def _evict(self, short: int) -> None:
        if short <= 0:
            return
        self.outcome.evict_calls += 1
        while short > 0:
            next_use, _, node = heapq.heappop(self.victims)
            if self.holders[node] or next_use != -self.next_use[node]:
                continue
            count = min(self.cached[node], short)
            self.cached[node] -= count
            self.used -= count
            short -= count
            self.outcome.evicted_tokens += count
            if self.cached[node]:
                self._offer(node)


def _found(prompt: Sequence[int]) -> Sequence[int]:
    """The nodes of a prompt that it can use where they are cached: all but its last token, whose output is needed."""
    return prompt[:-1]
