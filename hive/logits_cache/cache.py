"""The Logits Cache as the scheduler uses it: replay on arrival, record while decoding, write back at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hive.logits_cache.replay import Replay, Stop, replay
from hive.logits_cache.sampling import SamplingRule
from hive.logits_cache.trie import LogitsTrie, PrefixHash


@dataclass(slots=True)
class CachedRequest:
    """What the cache knows of one request in flight."""

    namespace: str
    rule: SamplingRule
    seed: int
    prompt: Sequence[int]
    epoch: int = -1
    """The cache's epoch when the request was looked up: rows of older weights are not written back."""
    rows: dict[int, bytes] = field(default_factory=dict)
    """Recorded distributions, packed, by index of the output token drawn from them."""


@dataclass(slots=True)
class CacheStatistics:
    """Counters since start (or the last flush of the statistics: never)."""

    lookups: int = 0
    hits: int = 0
    """Lookups that replayed at least one token."""
    served_whole: int = 0
    """Requests that never reached the model."""
    tokens_replayed: int = 0
    tokens_recorded: int = 0
    flushes: int = 0
    replay_seconds: float = 0.0
    record_seconds: float = 0.0
    stops: Counter[str] = field(default_factory=Counter)
    bypassed: Counter[str] = field(default_factory=Counter)
    """Requests that took no part, by reason."""


class LogitsCache:
    """Trie, counters and policy in one place; knows nothing of the engine.

    Not thread-safe: it lives on the scheduler's thread.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.trie = LogitsTrie(capacity_bytes)
        self.statistics = CacheStatistics()
        self.epoch = 0

    def replay(self, request: CachedRequest, take: Callable[[int], bool]) -> Replay:
        """Serve as much of a new request as the kept distributions decide; see :func:`replay.replay`."""
        started = time.perf_counter()
        entry = PrefixHash(request.namespace, request.prompt).digest()
        outcome = replay(self.trie, entry, request.rule, request.seed, len(request.prompt) - 1, take)
        request.epoch = self.epoch
        counts = self.statistics
        counts.lookups += 1
        counts.hits += outcome.tokens > 0
        counts.served_whole += outcome.stop is Stop.FINISHED
        counts.tokens_replayed += outcome.tokens
        counts.stops[outcome.stop.value] += 1
        counts.replay_seconds += time.perf_counter() - started
        return outcome

    def record(self, request: CachedRequest, index: int, row: bytes | None) -> None:
        """Keep the packed distribution that output token ``index`` was drawn from until the request ends; None for
        one that cannot be replayed."""
        if row is not None:
            request.rows[index] = row
            self.statistics.tokens_recorded += 1

    def write_back(self, request: CachedRequest, output: Sequence[int]) -> None:
        """Move a finished request's distributions into the trie."""
        started = time.perf_counter()
        if request.rows and request.epoch == self.epoch:
            self.trie.insert(request.namespace, request.prompt, output, request.rows)
        request.rows = {}
        self.statistics.record_seconds += time.perf_counter() - started

    def bypass(self, reason: str) -> None:
        """Count a request that the cache cannot serve."""
        self.statistics.bypassed[reason] += 1

    def flush(self) -> None:
        """Forget every distribution: the weights changed, or the operator asked."""
        self.trie.clear()
        self.epoch += 1
        self.statistics.flushes += 1

    def summary(self) -> dict[str, Any]:
        """Counters and sizes as JSON-safe values."""
        counts = self.statistics
        return {
            "lookups": counts.lookups,
            "hits": counts.hits,
            "served_whole": counts.served_whole,
            "tokens_replayed": counts.tokens_replayed,
            "tokens_recorded": counts.tokens_recorded,
            "flushes": counts.flushes,
            "replay_seconds": round(counts.replay_seconds, 6),
            "record_seconds": round(counts.record_seconds, 6),
            "stops": dict(counts.stops),
            "bypassed": dict(counts.bypassed),
            "nodes": len(self.trie),
            "bytes": self.trie.nbytes,
            "capacity_bytes": self.trie.capacity_bytes,
            "evicted_nodes": self.trie.evicted_nodes,
        }
