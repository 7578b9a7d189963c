"""What a server says that it computed, from its `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^(sglang:\w+)(?:\{(.*)\})? ([-+.\deE]+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TOKENS = "sglang:realtime_tokens_total"
_VERIFICATIONS = "sglang:spec_verify_calls_total"


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

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(
            self.prefilled - earlier.prefilled,
            self.cached - earlier.cached,
            self.verifications - earlier.verifications,
        )

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.prefilled + other.prefilled,
            self.cached + other.cached,
            self.verifications + other.verifications,
        )


def read(metrics: str) -> Counters:
    """The counters in a text of Prometheus' format, added up over what else its labels tell apart."""
    prefilled = cached = verifications = 0.0
    for line in metrics.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        name, value = found[1], float(found[3])
        if name == _TOKENS:
            mode = _labels(found[2]).get("mode")
            prefilled += value * (mode == "prefill_compute")
            cached += value * (mode == "prefill_cache")
        elif name == _VERIFICATIONS:
            verifications += value
    return Counters(round(prefilled), round(cached), round(verifications))


def _labels(text: str | None) -> Mapping[str, str]:
    return dict(_LABEL.findall(text or ""))
