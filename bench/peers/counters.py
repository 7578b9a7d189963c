"""What a server says that it computed, from its `/metrics`, and of Hive's from `/hive/stats`, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

_LINE = re.compile(r"^(sglang:\w+)(?:\{(.*)\})? ([-+.\deE]+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
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
    prefilled = cached = decoded = verifications = extends = steps = 0.0
    for line in metrics.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        name, mode, value = found[1], _labels(found[2]).get("mode", ""), float(found[3])
        if name == _TOKENS:
            prefilled += value * (mode == "prefill_compute")
            cached += value * (mode == "prefill_cache")
            decoded += value * (mode == "decode")
        elif name == _PASSES:
            extends += value * mode.startswith("prefill_")
            steps += value * mode.startswith("decode_")
        elif name == _VERIFICATIONS:
            verifications += value
    return Counters(
        round(prefilled),
        round(cached),
        round(verifications),
        round(extends),
        round(steps),
        # A pass of speculative decoding draws several tokens for a request, but verifies once for each.
        verifications or decoded,
    )


def _labels(text: str | None) -> Mapping[str, str]:
    return dict(_LABEL.findall(text or ""))
