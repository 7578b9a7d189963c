"""The Logits Cache as the scheduler uses it: replay at arrival, record while decoding, clean up when a request ends."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hive_frontend.wire import derive_seed

from hive.server.integrity import expect
from hive.server.logits_cache.distinct import DistinctSample
from hive.server.logits_cache.distinct_trees import DistinctTrees
from hive.server.logits_cache.hotspot import HotspotRule
from hive.server.logits_cache.in_flight import PATIENCE, InFlight
from hive.server.logits_cache.policies import Distinct, Hotspot, Policy, Prefetched, Stepwise
from hive.server.logits_cache.replay import Replay, Stop, Verdict
from hive.server.logits_cache.sampling import SamplingRule, uniform
from hive.server.logits_cache.statistics import MAX_TEMPERATURES, CacheStatistics, ratios
from hive.server.logits_cache.trie import LogitsTrie, Node, PrefixHash, Writer

DISTINCT_SHARE = 1 / 16
"""Part of the byte budget for remembering the outputs of distinct samples."""

MAX_PREFETCHED = 1024
"""Maximum number of next samples that are replayed ahead of their requests and kept."""

MAX_PREFETCHED_TOKENS = 2**17
"""Maximum number of tokens of all of them together."""


@dataclass(slots=True)
class CachedRequest:
    """The state of one request in flight, as the cache sees it."""

    namespace: str
    rule: SamplingRule
    seed: int
    prompt: Sequence[int]
    policy: Literal["stepwise", "hotspot", "distinct"] = "stepwise"
    hotspot: HotspotRule = field(default_factory=HotspotRule)
    ending: str = ""
    """Everything that decides where an output ends; distinct samples with different endings are kept apart."""
    next_seed: int | None = None
    """Seed of the state's next sample, if it can be predicted."""
    epoch: int = -1
    """The cache's epoch at look-up; rows computed with older weights are not recorded."""
    writer: Writer | None = None
    """None until a row is recorded."""
    sample: DistinctSample | None = None
    computes: bytes | None = None
    """The state whose row the model is computing for this request."""
    awaits: bytes | None = None
    """The state at which this request waits, for a row that another request computes or for earlier samples."""
    patience: int = 0
    """Scheduler loops that it will still wait for a row."""
    coalesced: bool = False
    """Whether it has waited for another request's row and got it."""
    _walk: PrefixHash | None = None
    _walked: int = 0
    _prefix: PrefixHash | None = None
    _entry: bytes | None = None
    _outputs: bytes | None = None

    def entry(self) -> bytes:
        """Return the digest of the request's first state."""
        if self._entry is None:
            self._entry = self.prefix().digest()
        return self._entry

    def prefix(self) -> PrefixHash:
        """Return the running digest at the request's first state; copy it before extending it."""
        if self._prefix is None:
            self._prefix = PrefixHash(self.namespace, self.prompt)
        return self._prefix

    def state(self, output: Sequence[int]) -> bytes:
        """Return the digest of the state after ``output``, which may only grow between calls."""
        if self._walk is None:
            self._walk = self.prefix().copy()
        for token in output[self._walked :]:
            self._walk.push(token)
        self._walked = len(output)
        return self._walk.digest()

    def outputs(self) -> bytes:
        """Return the digest of the set of outputs that a distinct sample is drawn from."""
        if self._outputs is None:
            kind = f"{len(self.ending)}:{self.ending}{self.namespace}"
            self._outputs = PrefixHash(kind, self.prompt).digest()
        return self._outputs


@dataclass(slots=True)
class _PrefetchedSample:
    """The next sample of a state, replayed ahead of its request."""

    replay: Replay
    tokens: list[int] = field(default_factory=list)


_Key = tuple[bytes, SamplingRule, int]


class LogitsCache:
    """The trie, the policies and the counters together; independent of the engine.

    Not thread-safe: only the scheduler's thread uses it.
    """

    def __init__(self, capacity_bytes: int, *, replay_ahead: bool = False) -> None:
        """``replay_ahead`` has the cache offer the next samples of known states to :meth:`prefetch`."""
        self._replay_ahead = replay_ahead
        remembered = max(1, int(capacity_bytes * DISTINCT_SHARE))
        self.trie = LogitsTrie(max(1, capacity_bytes - remembered))
        self.distinct = DistinctTrees(remembered)
        self.capacity_bytes = capacity_bytes
        self.budget_bytes = capacity_bytes
        """Current budget, as the host's free memory allows; at most the capacity."""
        self.statistics = CacheStatistics()
        self.epoch = 0
        self.in_flight = InFlight()
        self._ahead: OrderedDict[_Key, _PrefetchedSample] = OrderedDict()
        self._ahead_tokens = 0
        self._pending: deque[_Key] = deque()

    @property
    def nbytes(self) -> int:
        return self.trie.nbytes + self.distinct.nbytes

    def limit(self, budget_bytes: int) -> int:
        """Set the budget, at most the capacity, and evict down to it; return the bytes evicted."""
        before = self.nbytes
        self.budget_bytes = min(budget_bytes, self.capacity_bytes)
        self.distinct.resize(int(self.budget_bytes * DISTINCT_SHARE))
        # The trie may use what the distinct trees leave; a fixed split would evict rows without need.
        most = self.capacity_bytes - int(self.capacity_bytes * DISTINCT_SHARE)
        self.trie.resize(min(most, self.budget_bytes - self.distinct.nbytes))
        self.statistics.bytes_given_up += before - self.nbytes
        return before - self.nbytes

    def begin(self, request: CachedRequest) -> Replay:
        """Look up a new request; the caller runs its replay in slices and then calls :meth:`concluded`."""
        entry = request.entry()
        node = self.trie.find(entry)
        request.epoch = self.epoch
        self.statistics.lookups += 1
        self.statistics.policies[request.policy] += 1
        return Replay(node, self._policy(request, entry))

    def _policy(self, request: CachedRequest, entry: bytes) -> Policy:
        position = len(request.prompt) - 1
        match request.policy:
            case "hotspot":
                return Hotspot(request.rule, request.seed, position, request.hotspot)
            case "distinct":
                seed = derive_seed("whom to follow", request.seed)
                request.sample = self.distinct.sample(
                    request.outputs(), request.rule, lambda depth: uniform(seed, position + depth)
                )
                return Distinct(request.sample, request.seed, position)
        ahead = self._ahead.pop((entry, request.rule, request.seed), None)
        if ahead is None:
            return Stepwise(request.rule, request.seed, position)
        self._ahead_tokens -= len(ahead.tokens)
        self.statistics.prefetch_hits += 1
        self.statistics.prefetch_hit_tokens += len(ahead.tokens)
        return Prefetched(ahead.tokens, request.rule, request.seed, position)

    def run(
        self,
        replay: Replay,
        request: CachedRequest,
        output: Sequence[int],
        take: Callable[[int, Node], Verdict],
        limit: int,
    ) -> None:
        """Run one slice of a replay (see :meth:`Replay.run`); ``output`` is the list that ``take`` appends to.

        A replay pauses instead of stopping where the model computes the next row for another request, or where a
        distinct sample must wait for an earlier one.  It continues in a later slice.
        """
        started = time.perf_counter()
        if request.awaits is None or self._arrived(replay, request):
            replay.run(take, limit)
            if self._pauses(replay, request, output):
                replay.stop = None
                request.awaits, request.patience = request.state(output), PATIENCE
        self.statistics.replay_seconds += time.perf_counter() - started

    def _pauses(self, replay: Replay, request: CachedRequest, output: Sequence[int]) -> bool:
        """Whether a replay that has stopped should pause and continue later."""
        match replay.stop:
            case Stop.UNKNOWN | Stop.DIVERGED:
                # A hotspot replay follows a whole output: a single row is no use to it.
                coming = request.policy != "hotspot" and request.state(output) in self.in_flight
                return coming or _blocked(request)
            case Stop.UNDECIDED:
                return _blocked(request)
        return False

    def _arrived(self, replay: Replay, request: CachedRequest) -> bool:
        """Whether the awaited row is there; stops the replay if the row will not come."""
        assert request.awaits is not None
        node = self.trie.find(request.awaits)
        if node is not None:
            self.statistics.coalesced += not request.coalesced
            request.coalesced = True
            request.awaits = None
            replay.resume(node)
        elif _blocked(request):
            pass  # The model must not draw the next token, even if the row never comes.
        elif request.patience and request.awaits in self.in_flight:
            request.patience -= 1
        else:
            request.awaits = None
            replay.stop = Stop.DIVERGED if replay.tokens else Stop.UNKNOWN
        return node is not None

    def queued(self, request: CachedRequest, output: Sequence[int]) -> None:
        """Note that a request goes to the model, which computes the row after its output."""
        if request.epoch == self.epoch:
            self._computes(request, request.state(output))

    def _computes(self, request: CachedRequest, state: bytes | None) -> None:
        if request.computes is not None:
            self.in_flight.discard(request.computes)
        request.computes = state
        if state is not None:
            self.in_flight.add(state)

    def concluded(self, replay: Replay) -> None:
        """Count a replay that has stopped, and mark the nodes that it used."""
        assert replay.stop is not None
        self.trie.touch(replay.path or ())
        if isinstance(replay.policy, Hotspot):
            self.statistics.hotspot_divergence += replay.policy.divergence
        counts = self.statistics
        counts.hits += replay.tokens > 0
        counts.served_whole += replay.stop is Stop.FINISHED
        counts.tokens_replayed += replay.tokens
        counts.stops[replay.stop.value] += 1

    def record(self, request: CachedRequest, output: Sequence[int], row: bytes | None) -> None:
        """Record the packed distribution that the last token of ``output`` was drawn from.

        ``row`` is None if it cannot be replayed.  Rows of weights that were replaced meanwhile are not recorded.
        """
        if row is None or request.epoch != self.epoch:
            self._computes(request, None)
            return
        if request.writer is None:
            request.writer = Writer(self.trie, request.prefix().copy())
        request.writer.write(len(output) - 1, output, row)
        self.statistics.tokens_recorded += 1
        self._computes(request, request.state(output))

    def depart(self, request: CachedRequest, output: Sequence[int], *, ended: bool, replayed: int) -> None:
        """Clean up after a request.

        Args:
            request: the request, in whatever way it ended.
            output: all its tokens.
            ended: whether the output is complete (finish reason stop or length); only then does distinct sampling
                count it as used up.
            replayed: how many of the tokens came from the cache.
        """
        if request.writer is not None and request.epoch == self.epoch:
            request.writer.close()
        request.writer = None
        self._computes(request, None)
        if request.sample is not None:
            request.sample.finish(ended)
            request.sample = None
        self._count(request.rule.temperature, replayed, len(output) - replayed)
        if self._replay_ahead and ended and request.next_seed is not None and request.policy == "stepwise":
            self._prefetch_later(request, request.next_seed)

    def _count(self, temperature: float, replayed: int, generated: int) -> None:
        known = self.statistics.by_temperature
        key = round(temperature, 4)
        if key not in known and len(known) >= MAX_TEMPERATURES:
            key = min(known, key=lambda other: abs(other - key))
        counts = known.setdefault(key, Counter())
        counts["tokens_replayed"] += replayed
        counts["tokens_generated"] += generated

    def _prefetch_later(self, request: CachedRequest, seed: int) -> None:
        entry = request.entry()
        node = self.trie.find(entry)
        key = (entry, request.rule, seed)
        if node is None or key in self._ahead:
            return
        policy = Stepwise(request.rule, seed, len(request.prompt) - 1)
        self._ahead[key] = _PrefetchedSample(Replay(node, policy, keep_path=False))
        self._pending.append(key)
        while len(self._ahead) > MAX_PREFETCHED or self._ahead_tokens > MAX_PREFETCHED_TOKENS:
            _, oldest = self._ahead.popitem(last=False)
            self._ahead_tokens -= len(oldest.tokens)
        while len(self._pending) > MAX_PREFETCHED:
            self._pending.popleft()

    @property
    def prefetching(self) -> bool:
        """Whether there are next samples left to replay ahead."""
        return bool(self._pending)

    def prefetch(self, limit: int) -> None:
        """Replay next samples of cached states ahead of their requests, at most ``limit`` tokens (paper, 6.3)."""
        started = time.perf_counter()
        while self._pending and limit > 0:
            ahead = self._ahead.get(self._pending[0])
            if ahead is None or ahead.replay.stop is not None:
                self._pending.popleft()
                continue
            before = ahead.replay.tokens

            def take(token: int, _node: Node, tokens: list[int] = ahead.tokens) -> Verdict:
                tokens.append(token)
                return Verdict.CONTINUES

            ahead.replay.run(take, limit)
            done = ahead.replay.tokens - before
            self._ahead_tokens += done
            self.statistics.prefetched_tokens += done
            limit -= max(1, done)
            if ahead.replay.stop is not None:
                self.statistics.prefetched += 1
                self._pending.popleft()
        self.statistics.prefetch_seconds += time.perf_counter() - started

    def bypass(self, reason: str) -> None:
        """Count a request that the cache cannot serve, by reason."""
        self.statistics.bypassed[reason] += 1

    def flush(self) -> None:
        """Drop every distribution, after a change of weights or on the operator's request."""
        self.trie.clear()
        self.distinct.clear()
        self.in_flight.clear()
        self._ahead.clear()
        self._ahead_tokens = 0
        self._pending.clear()
        self.epoch += 1
        self.statistics.flushes += 1

    def check_integrity(self) -> None:
        """Raise IntegrityError unless all counters agree with the data."""
        self.trie.check_integrity()
        self.distinct.check_integrity()
        expect(len(self._ahead) <= MAX_PREFETCHED, "too many prefetched samples")
        expect(
            self._ahead_tokens == sum(len(ahead.tokens) for ahead in self._ahead.values()),
            "prefetched tokens",
        )

    def summary(self) -> dict[str, Any]:
        """Return counters and sizes as JSON-safe values."""
        counts = self.statistics
        summary = {
            **{name: getattr(counts, name) for name in _COUNTERS},
            "prefetch_saved_seconds": round(
                counts.prefetch_seconds * counts.prefetch_hit_tokens / max(1, counts.prefetched_tokens), 6
            ),
            "hotspot_nats": round(counts.hotspot_divergence, 6),
            "replay_seconds": round(counts.replay_seconds, 6),
            "record_seconds": round(counts.record_seconds, 6),
            "prefetch_seconds": round(counts.prefetch_seconds, 6),
            "stops": dict(counts.stops),
            "policies": dict(counts.policies),
            "bypassed": dict(counts.bypassed),
            "by_temperature": {
                str(key): dict(tokens) for key, tokens in sorted(counts.by_temperature.items())
            },
            "nodes": len(self.trie),
            "bytes": self.nbytes,
            "row_bytes": self.trie.nbytes,
            "capacity_bytes": self.capacity_bytes,
            "budget_bytes": self.budget_bytes,
            "evicted_nodes": self.trie.evicted_nodes,
            "distinct_states": len(self.distinct),
            "distinct_forgotten": self.distinct.forgotten,
        }
        return summary | ratios(summary)


_COUNTERS = (
    *("lookups", "hits", "served_whole", "tokens_replayed", "tokens_recorded", "coalesced", "flushes"),
    *("prefetched", "prefetch_hits", "prefetched_tokens", "bytes_given_up"),
)
"""Those of the statistics that the summary has under their own names."""


def _blocked(request: CachedRequest) -> bool:
    """Whether the request is a distinct sample that must wait for an earlier one."""
    return request.sample is not None and request.sample.blocked
