"""How full the engine's batches are: its forward passes by kind, and the requests that decode in one."""

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
    """Batches that computed prompts, or what is new behind cached ones."""
    mixed: int = 0
    """Decode steps that new requests were a part of (:mod:`sglang_patches.scheduling.mixed_step`)."""
    decode_steps: int = 0
    """With the mixed ones."""
    decoded_rows: int = 0
    """Requests in decode steps, each counted in every step."""

    def count(self, batch: ScheduleBatch) -> None:
        """One forward pass."""
        mixed = batch.forward_mode.is_mixed()
        if mixed or batch.forward_mode.is_decode():
            self.mixed += mixed
            self.decode_steps += 1
            self.decoded_rows += len(batch.reqs)
        elif batch.forward_mode.is_extend():
            self.extends += 1

    def summary(self) -> dict[str, float]:
        """The counters, and :func:`running_mean`."""
        counts = {
            "extends": self.extends,
            "mixed": self.mixed,
            "decode_steps": self.decode_steps,
            "decoded_rows": self.decoded_rows,
        }
        return {**counts, "running_mean": running_mean(counts)}


def running_mean(counts: Mapping[str, float]) -> float:
    """Running requests on the average of all decode steps, of these counters or of sums of such."""
    steps = counts["decode_steps"]
    return round(counts["decoded_rows"] / steps, 3) if steps else 0.0
