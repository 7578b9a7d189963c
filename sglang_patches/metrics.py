"""Hive's Prometheus metrics, written by the scheduler into SGLang's multi-process registry (``/metrics``)."""

from __future__ import annotations

from hive.agents.registry import AgentRegistry
from hive.eviction.book import ResidencyBook
from hive.logits_cache.cache import LogitsCache
from hive.logits_cache.replay import Stop


class SchedulerMetrics:
    """Counters by agent and gauges of the Logits Cache.

    Agent names are bounded by the registry, which folds those past its limit into one.
    """

    def __init__(self) -> None:
        # Imported late: prometheus_client fixes its mode at import, and SGLang sets the directory before.
        from prometheus_client import Counter, Gauge

        def counter(name: str, text: str) -> Counter:
            return Counter(f"hive_{name}", text, ["agent"])

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"hive_logits_cache_{name}", text, multiprocess_mode="livesum")

        self._requests = counter("requests", "Requests finished.")
        self._prompt = counter("prompt_tokens", "Prompt tokens.")
        self._cached = counter("cached_tokens", "Prompt tokens found in the radix cache.")
        self._generated = counter("tokens_generated", "Output tokens computed by the model.")
        self._replayed = counter("tokens_replayed", "Output tokens served by the Logits Cache.")

        def score_gauge(name: str, text: str) -> Gauge:
            # Data-parallel ranks score for themselves, and what is relative does not add up.
            return Gauge(f"hive_agent_{name}", text, ["agent"], multiprocess_mode="livemax")

        def token_gauge(name: str, text: str) -> Gauge:
            return Gauge(f"hive_agent_{name}_tokens", text, ["agent"], multiprocess_mode="livesum")

        self._score = score_gauge(
            "score", "Contribution score as of the last round, from 0 to 1; the best of any rank."
        )
        self._intrinsic = score_gauge("intrinsic", "Intrinsic part of the score, from 0 to 1.")
        self._collaborative = score_gauge("collaborative", "Collaborative part of the score, from 0 to 1.")
        self._resident = token_gauge("resident", "KV on the device that the agent computed.")
        self._evicted_kv = token_gauge("evicted", "Of the agent's KV, evicted since start.")
        self._round = 0
        self._scored: set[str] = set()
        """Agents whose gauges show a score."""
        self._bytes = gauge("bytes", "Host memory in use.")
        self._nodes = gauge("nodes", "States kept.")
        self._lookups = gauge("lookups", "Requests looked up since start.")
        self._hits = gauge("hits", "Lookups that replayed at least one token since start.")
        self._evicted = gauge("evicted_nodes", "States evicted since start.")
        self._fallbacks = gauge(
            "fallbacks", "Replays that ended since start because a kept head was too short."
        )
        self._prefetch_hits = gauge("prefetch_hits", "Requests since start that had been replayed ahead.")
        self._replay = gauge("replay_seconds", "Time in replay since start.")
        self._record = gauge("record_seconds", "Time in recording since start.")
        self._by_temperature = Gauge(
            "hive_logits_cache_tokens",
            "Output tokens of requests that took part since start, by temperature and by where they came from.",
            ["temperature", "source"],
            multiprocess_mode="livesum",
        )
        self._bypassed = Gauge(
            "hive_logits_cache_bypassed",
            "Requests that took no part since start, by reason.",
            ["reason"],
            multiprocess_mode="livesum",
        )

    def finished(self, agent: str, prompt: int, *, cached_tokens: int, generated: int, replayed: int) -> None:
        """Count a request that ended."""
        self._requests.labels(agent).inc()
        self._prompt.labels(agent).inc(prompt)
        self._cached.labels(agent).inc(cached_tokens)
        self._generated.labels(agent).inc(generated)
        self._replayed.labels(agent).inc(replayed)

    def agents(self, agents: AgentRegistry, book: ResidencyBook | None) -> None:
        """Show the scores and residency of agents; they change by the round."""
        if agents.window.round == self._round:
            return
        self._round = agents.window.round
        scores = agents.window.scores
        for name in self._scored | scores.keys():
            # One that did nothing in the whole window has no score any more.
            scored = scores.get(name)
            self._score.labels(name).set(scored.score if scored else 0.0)
            self._intrinsic.labels(name).set(scored.intrinsic if scored else 0.0)
            self._collaborative.labels(name).set(scored.collaborative if scored else 0.0)
        self._scored = set(scores)
        for name, tokens in (book.summary() if book is not None else {}).items():
            self._resident.labels(name).set(tokens["resident_tokens"])
            self._evicted_kv.labels(name).set(tokens["evicted_tokens"])

    def cache(self, cache: LogitsCache | None) -> None:
        """Show the state of the Logits Cache."""
        if cache is None:
            return
        self._bytes.set(cache.nbytes)
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
