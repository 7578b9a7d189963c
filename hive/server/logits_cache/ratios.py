"""What counters of a Logits Cache say in relation to each other.

Ratios of several caches cannot be added up, as counters can: they are computed from the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
