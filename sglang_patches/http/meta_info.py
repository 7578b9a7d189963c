"""Adds ``meta_info.hive`` to responses: what Hive did for the request."""

from __future__ import annotations

from typing import Any

from sglang_patches.requests.request_state import KV_KEY, PROBABILITY_KEY, REPEATS_KEY, REPLAYED_KEY


def annotate(meta_info: dict[str, Any], tag: dict[str, Any]) -> None:
    """Write a request's tag and what Hive did for it to ``meta_info``."""
    # In a batch with replayed tokens, the other rows have None.
    replayed = sum(mark is not None for mark in meta_info.pop(REPLAYED_KEY, ()))
    generated = meta_info["completion_tokens"] - replayed
    meta_info["hive"] = done = {**tag, "tokens_replayed": replayed, "tokens_generated": generated}
    for key, name in ((PROBABILITY_KEY, "log_probability"), (REPEATS_KEY, "repeats"), (KV_KEY, "kv")):
        values = [value for value in meta_info.pop(key, ()) if value is not None]
        if values:
            done[name] = values[-1]
