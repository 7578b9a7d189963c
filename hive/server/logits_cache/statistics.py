"""Counters of a Logits Cache, and ratios of them.

Counters of several caches can be added up; ratios cannot, so they are computed from the sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_TEMPERATURES = 64
"""Temperatures that the statistics tell apart; further ones are counted under the nearest known one."""


@dataclass(slots=True)
class CacheStatistics:
    """Counters since start."""

    lookups: int = 0
    hits: int = 0
    """Lookups that replayed at least one token."""
    served_whole: int = 0
    """Requests that were replayed to their end, without the model."""
    tokens_replayed: int = 0
    tokens_recorded: int = 0
    coalesced: int = 0
    """Requests that waited for a row that the model was computing for another request, or for an earlier sample."""
    flushes: int = 0
    bytes_given_up: int = 0
    """Bytes evicted because the host ran short of memory."""
    prefetched: int = 0
    """Next samples that were replayed ahead of a request."""
    prefetch_hits: int = 0
    """Requests whose tokens had been replayed ahead."""
    prefetched_tokens: int = 0
    """Tokens replayed ahead."""
    prefetch_hit_tokens: int = 0
    """Tokens that those requests took over."""
    hotspot_divergence: float = 0.0
    """Sum of the estimated KL(hotspot || exact) of all hotspot replays, in nats."""
    replay_seconds: float = 0.0
    record_seconds: float = 0.0
    """Time that the scheduler's thread spent on rows: packing, recording and merging them."""
    prefetch_seconds: float = 0.0
    stops: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    bypassed: Counter[str] = field(default_factory=Counter)
    """Requests that did not use the cache, by reason."""
    by_temperature: dict[float, Counter[str]] = field(default_factory=dict)
    """Tokens replayed and generated, by temperature."""


def ratios(counts: Mapping[str, Any]) -> dict[str, float]:
    """Return the ratios of the counters in :meth:`hive.server.logits_cache.cache.LogitsCache.summary`, or in a sum of
    such summaries.
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
