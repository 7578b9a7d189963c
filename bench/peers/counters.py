"""A server's counters of its work, from `/metrics` and, of Hive's, `/hive/stats`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_TOKENS = "sglang:realtime_tokens_total"
_VERIFICATIONS = "sglang:spec_verify_calls_total"
_PASSES = "sglang:cuda_graph_passes_total"


@dataclass(frozen=True)
class Counters:
    """Since the server's start, or between two readings."""

    prefilled: int = 0
    """Tokens whose KV was computed before anything could be drawn: of prompts, less what the radix cache had, and of
    replayed output that the model went on from."""
    cached: int = 0
    """Tokens of prompts that the radix cache had."""
    verifications: int = 0
    """Passes in which the model looked at a draft of speculative decoding, counted for each request."""

    extends: int = 0
    """Passes of the model over new tokens of prompts."""
    decode_steps: int = 0
    """Passes that drew a token for every running request."""
    in_steps: float = 0.0
    """Requests in those passes, summed over them."""

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(*(getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)))

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def running_mean(self) -> float | None:
        """Requests in a decode step, on average; None without a step."""
        return self.in_steps / self.decode_steps if self.decode_steps else None

    def by_hive(self, stats: Mapping[str, Any]) -> Counters:
        """These, with the passes as Hive's server counts them in `/hive/stats`.

        Its short extends are steps of decoding, which SGLang's own counters do not know.
        """
        passes = stats.get("scheduler")
        if passes is None:
            return self
        steps = passes["decode_steps"]
        # Rounded, so that of many steps the sum would be off, had the server not said it.
        in_steps = passes.get("decoded_rows", passes["running_mean"] * steps)
        return replace(self, extends=passes["extends"], decode_steps=steps, in_steps=in_steps)


def read(metrics: str) -> Counters:
    """The counters in a text of Prometheus' format, added up over what else its labels tell apart."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(metrics):
        for name, labels, value, *_ in family.samples:
            # Modes of passes end with the kind of CUDA graph.
            mode = labels.get("mode", "")
            found[name, mode.partition("_")[0] if name == _PASSES else mode] += value
    verifications = sum(value for (name, _), value in found.items() if name == _VERIFICATIONS)
    return Counters(
        round(found[_TOKENS, "prefill_compute"]),
        round(found[_TOKENS, "prefill_cache"]),
        round(verifications),
        round(found[_PASSES, "prefill"]),
        round(found[_PASSES, "decode"]),
        # A pass of speculative decoding draws several tokens for a request, but verifies once for each.
        verifications or found[_TOKENS, "decode"],
    )
