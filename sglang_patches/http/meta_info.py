"""What Hive did for a request, as ``meta_info.hive`` of its answers."""

from __future__ import annotations

from typing import Any

from sglang_patches.requests.request_state import KV_KEY, PROBABILITY_KEY, REPEATS_KEY, REPLAYED_KEY


def annotate(meta_info: dict[str, Any], tag: dict[str, Any]) -> None:
    """Say in the last or a later answer to a request what was done, beside its tag."""
    # In a batch, rows beside a replayed one carry None in its place.
    replayed = sum(mark is not None for mark in meta_info.pop(REPLAYED_KEY, ()))
    generated = meta_info["completion_tokens"] - replayed
    meta_info["hive"] = done = {**tag, "tokens_replayed": replayed, "tokens_generated": generated}
    for key, name in ((PROBABILITY_KEY, "log_probability"), (REPEATS_KEY, "repeats"), (KV_KEY, "kv")):
        said = [value for value in meta_info.pop(key, ()) if value is not None]
        if said:
            done[name] = said[-1]
