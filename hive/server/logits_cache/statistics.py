"""Counters of a Logits Cache, and what they say in relation to each other.

Ratios of several caches cannot be added up, as counters can: they are computed from the sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_TEMPERATURES = 64
"""Temperatures that are told apart in statistics; later ones are counted under the nearest known one."""


@dataclass(slots=True)
class CacheStatistics:
    """Counters since start."""

    lookups: int = 0
    hits: int = 0
    """Lookups that replayed at least one token."""
    served_whole: int = 0
    """Requests that never reached the model."""
    tokens_replayed: int = 0
    tokens_recorded: int = 0
    followed: int = 0
    """Requests that waited for a row that the model computed for another one at the time, or for an earlier sample."""
    flushes: int = 0
    bytes_given_up: int = 0
    """Evicted because the host ran short of memory."""
    prefetched: int = 0
    """Next samples replayed ahead."""
    prefetch_hits: int = 0
    """Requests that found themselves replayed ahead."""
    prefetched_tokens: int = 0
    """Tokens replayed ahead."""
    prefetch_hit_tokens: int = 0
    """Tokens that such requests took."""
    hotspot_divergence: float = 0.0
    """Sum over hotspot replays of their estimates of KL(hotspot || exact), in nats."""
    replay_seconds: float = 0.0
    record_seconds: float = 0.0
    """Spent on the scheduler's thread over rows: packing, keeping and writing back."""
    prefetch_seconds: float = 0.0
    stops: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    bypassed: Counter[str] = field(default_factory=Counter)
    """Requests that took no part, by reason."""
    by_temperature: dict[float, Counter[str]] = field(default_factory=dict)
    """Tokens replayed and generated."""


def ratios(counts: Mapping[str, Any]) -> dict[str, float]:
    """The ratios of the counters that :meth:`hive.server.logits_cache.cache.LogitsCache.summary` gives, or of sums
    of such.
    """
    tokens = counts["by_temperature"].values()
    replayed = sum(each.get("tokens_replayed", 0) for each in tokens)
    generated = sum(each.get("tokens_generated", 0) for each in tokens)
    return {
        "hit_ratio": _share(replayed, replayed + generated),
        "undecided_ratio": _share(counts["stops"].get("undecided", 0), counts["tokens_replayed"]),
        "hotspot_kl_nats": _share(counts["hotspot_nats"], counts["policies"].get("hotspot", 0)),
        "bytes_per_token": round(_share(counts["row_bytes"], counts["nodes"]), 1),
    }


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0
