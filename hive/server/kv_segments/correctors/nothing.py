"""Placed KV is taken as it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hive.server.kv_segments.correctors.base import Corrector, PlacedRun


class RecomputeNone(Corrector):
    """What Prompt Choreography does: it leaves the difference to fine-tuning (its section 3.2)."""

    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        return []

    def most(self, placed: Sequence[PlacedRun]) -> int:
        return 0
