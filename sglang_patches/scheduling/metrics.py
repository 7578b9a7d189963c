"""Hive's Prometheus metrics, written by the scheduler into SGLang's multi-process registry (``/metrics``)."""

from __future__ import annotations

from collections import Counter

from hive.server.agents.registry import OTHER, AgentRegistry
from hive.server.eviction.accounting import ResidencyAccounting
from hive.server.logits_cache.cache import LogitsCache
from hive.server.logits_cache.replay import Stop


class SchedulerMetrics:
    """Counters by agent, and gauges of the Logits Cache.

    A process cannot remove a label (prometheus_client does not support this if several processes share a directory).
    Labels are therefore bounded separately from the registry, which holds a bounded number of agents at a time, but
    any number over time.  At most as many unregistered agents get their own labels as the registry has slots, and at
    most twice as many agents in total.  All further agents are counted under
    :data:`~hive.server.agents.registry.OTHER`, and have no scores here.
    """

    def __init__(self) -> None:
        # Imported late: prometheus_client fixes its mode at import, and SGLang sets the directory first.
        from prometheus_client import Counter as Total
        from prometheus_client import Gauge

        def counter(name: str, text: str) -> Total:
            return Total(f"hive_{name}", text, ["agent"])

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"hive_logits_cache_{name}", text, multiprocess_mode="livesum")

        self._requests = counter("requests", "Requests finished.")
        self._prompt = counter("prompt_tokens", "Prompt tokens.")
        self._cached = counter("cached_tokens", "Prompt tokens found in the radix cache.")
        self._generated = counter("tokens_generated", "Output tokens computed by the model.")
        self._replayed = counter("tokens_replayed", "Output tokens served by the Logits Cache.")

        def score_gauge(name: str, text: str) -> Gauge:
            # Data-parallel ranks compute separate scores, and relative scores cannot be summed.
            return Gauge(f"hive_agent_{name}", text, ["agent"], multiprocess_mode="livemax")

        def token_gauge(name: str, text: str) -> Gauge:
            return Gauge(f"hive_agent_{name}_tokens", text, ["agent"], multiprocess_mode="livesum")

        self._score = score_gauge(
            "score", "Contribution score as of the last round, from 0 to 1; the best of any rank."
        )
        self._intrinsic = score_gauge("intrinsic", "Intrinsic part of the score, from 0 to 1.")
        self._collaborative = score_gauge("collaborative", "Collaborative part of the score, from 0 to 1.")
        self._resident = token_gauge("resident", "KV on the device that the agent computed.")
        self._evicted_kv = token_gauge("evicted", "KV of the agent that was evicted since start.")
        self._round = 0
        self._labels: set[str] = set()
        self._unregistered = 0
        """Number of labels for unregistered agents."""
        self._scored: set[str] = set()
        """Labels whose gauges show a score."""
        self._stored: set[str] = set()
        """Labels whose gauges show tokens."""
        self._stale = False
        """Whether a request has ended since the last update of the gauges."""
        self._bytes = gauge("bytes", "Host memory in use.")
        self._budget = gauge("budget_bytes", "Host memory that it may use, limited by the free host memory.")
        self._nodes = gauge("nodes", "States kept.")
        self._lookups = gauge("lookups", "Requests looked up since start.")
        self._hits = gauge("hits", "Lookups that replayed at least one token since start.")
        self._evicted = gauge("evicted_nodes", "States evicted since start.")
        self._fallbacks = gauge(
            "fallbacks", "Replays that ended since start because a recorded head was too short."
        )
        self._prefetch_hits = gauge("prefetch_hits", "Requests since start that had been prefetched.")
        self._replay = gauge("replay_seconds", "Time in replay since start.")
        self._record = gauge("record_seconds", "Time in recording since start.")
        self._by_temperature = Gauge(
            "hive_logits_cache_tokens",
            "Output tokens of requests with the Logits Cache since start, by temperature and by source.",
            ["temperature", "source"],
            multiprocess_mode="livesum",
        )
        self._bypassed = Gauge(
            "hive_logits_cache_bypassed",
            "Requests that bypassed the Logits Cache since start, by reason.",
            ["reason"],
            multiprocess_mode="livesum",
        )

    def finished(
        self,
        agents: AgentRegistry,
        agent: str,
        prompt: int,
        *,
        cached_tokens: int,
        generated: int,
        replayed: int,
    ) -> None:
        """Count a request that ended."""
        label = self._label(agents, agent)
        self._requests.labels(label).inc()
        self._prompt.labels(label).inc(prompt)
        self._cached.labels(label).inc(cached_tokens)
        self._generated.labels(label).inc(generated)
        self._replayed.labels(label).inc(replayed)
        self._stale = True

    def update(
        self, cache: LogitsCache | None, agents: AgentRegistry, accounting: ResidencyAccounting | None
    ) -> None:
        """Update all gauges if a request has ended since the last update.

        Called once per scheduler loop: with many short answers, an update for each of them took 2% of the scheduler's
        time.
        """
        if self._stale:
            self._stale = False
            self.cache(cache)
            self.agents(agents, accounting)

    def agents(self, agents: AgentRegistry, accounting: ResidencyAccounting | None) -> None:
        """Update the scores and residency of agents; they change once per round."""
        if agents.window.round == self._round:
            return
        self._round = agents.window.round
        scores = {
            name: score
            for name, score in agents.window.scores.items()
            # Scores of several agents cannot be combined.
            if self._label(agents, name) == name
        }
        for label in self._scored | scores.keys():
            # An agent that was idle for the whole window no longer has a score.
            scored = scores.get(label)
            self._score.labels(label).set(scored.score if scored else 0.0)
            self._intrinsic.labels(label).set(scored.intrinsic if scored else 0.0)
            self._collaborative.labels(label).set(scored.collaborative if scored else 0.0)
        self._scored = set(scores)
        resident, evicted = Counter[str](), Counter[str]()
        for name, tokens in (accounting.summary() if accounting is not None else {}).items():
            label = self._label(agents, name)
            resident[label] += tokens["resident_tokens"]
            evicted[label] += tokens["evicted_tokens"]
        for label in self._stored | resident.keys():
            # The tokens of a forgotten agent now belong to OTHER.
            self._resident.labels(label).set(resident[label])
            self._evicted_kv.labels(label).set(evicted[label])
        self._stored = set(resident)

    def _label(self, agents: AgentRegistry, name: str) -> str:
        """Return the label of an agent."""
        if name == OTHER or name in self._labels:
            return name
        if len(self._labels) >= 2 * agents.max_agents:
            return OTHER
        if not agents.is_registered(name):
            if self._unregistered >= agents.max_agents:
                return OTHER
            self._unregistered += 1
        self._labels.add(name)
        return name

    def cache(self, cache: LogitsCache | None) -> None:
        """Update the gauges of the Logits Cache."""
        if cache is None:
            return
        self._bytes.set(cache.nbytes)
        self._budget.set(cache.budget_bytes)
        self._nodes.set(len(cache.trie))
        self._lookups.set(cache.statistics.lookups)
        self._hits.set(cache.statistics.hits)
        self._evicted.set(cache.trie.evicted_nodes)
        self._fallbacks.set(cache.statistics.stops[Stop.UNDECIDED])
        self._prefetch_hits.set(cache.statistics.prefetch_hits)
        self._replay.set(cache.statistics.replay_seconds)
        self._record.set(cache.statistics.record_seconds)
        for temperature, counts in cache.statistics.by_temperature.items():
            for source, count in counts.items():
                self._by_temperature.labels(temperature, source.removeprefix("tokens_")).set(count)
        for reason, count in cache.statistics.bypassed.items():
            self._bypassed.labels(reason).set(count)
