"""A corrector that recomputes all placed KV: exact, by the same code path as the other correctors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hive.server.kv_segments.correctors.base import Corrector, PlacedRun


class RecomputeAll(Corrector):
    """Saves no work; a check that the machinery itself loses nothing."""

    kind = "recompute-all"

    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        return [index for run in placed for index in range(run.start, run.end)]

    def most(self, placed: Sequence[PlacedRun]) -> int:
        return sum(map(len, placed))
