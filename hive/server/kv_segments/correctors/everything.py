"""All placed KV is computed again: the exact path, by the machinery of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hive.server.kv_segments.correctors.base import Corrector, PlacedRun


class RecomputeAll(Corrector):
    """Saves nothing, and shows that the others lose no more than what they leave out."""

    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        return [index for run in placed for index in range(run.start, run.end)]

    def most(self, placed: Sequence[PlacedRun]) -> int:
        return sum(map(len, placed))
