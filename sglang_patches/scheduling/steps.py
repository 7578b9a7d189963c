"""Counts forward passes by kind, and the requests per decode step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch


@dataclass(slots=True)
class Steps:
    """Counters since start."""

    extends: int = 0
    """Prefill batches, including those behind cached tokens."""
    mixed: int = 0
    """Decode steps that included new requests (:mod:`sglang_patches.scheduling.mixed_step`)."""
    decode_steps: int = 0
    """Decode steps, including mixed ones."""
    decoded_rows: int = 0
    """Requests in decode steps, each counted once per step."""
    forced_tokens: int = 0
    """Tokens that took no step because a grammar dictated them (:mod:`sglang_patches.scheduling.forced_tokens`)."""

    def count(self, batch: ScheduleBatch) -> None:
        """Count one forward pass."""
        mixed = batch.forward_mode.is_mixed()
        if mixed or batch.forward_mode.is_decode():
            self.mixed += mixed
            self.decode_steps += 1
            self.decoded_rows += len(batch.reqs)
        elif batch.forward_mode.is_extend():
            self.extends += 1

    def summary(self) -> dict[str, float]:
        """Return the counters and :func:`running_mean`."""
        counts = {
            "extends": self.extends,
            "mixed": self.mixed,
            "decode_steps": self.decode_steps,
            "decoded_rows": self.decoded_rows,
            "forced_tokens": self.forced_tokens,
        }
        return {**counts, "running_mean": running_mean(counts)}


def running_mean(counts: Mapping[str, float]) -> float:
    """Return the mean number of running requests per decode step, from these counters or from sums of them."""
    steps = counts["decode_steps"]
    return round(counts["decoded_rows"] / steps, 3) if steps else 0.0
