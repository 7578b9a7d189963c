"""A corrector that recomputes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hive.server.kv_segments.correctors.base import Corrector, PlacedRun


class RecomputeNone(Corrector):
    """Takes placed KV as it is.  So does Prompt Choreography, which fine-tunes the model instead (its section 3.2)."""

    kind = "none"

    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        return []

    def most(self, placed: Sequence[PlacedRun]) -> int:
        return 0
