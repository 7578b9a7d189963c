"""The beginning of each segment is computed again.

The first tokens of a segment that was encoded alone took all attention that had nowhere else to go, and those of one
encoded behind another context carry most of what that context was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hive.server.kv_segments.correctors.base import Corrector, PlacedRun


@dataclass(frozen=True)
class FirstK(Corrector):
    """The first ``tokens`` of each segment, or the first ``share`` of it (rounded up); one of the two is set.

    What of them the exact tree has served is exact, and nothing else is computed in its place.
    """

    tokens: int | None = None
    share: float | None = None

    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        return [index for run in placed for index in range(run.start, run.start + self._first(run))]

    def most(self, placed: Sequence[PlacedRun]) -> int:
        return sum(map(self._first, placed))

    def _first(self, run: PlacedRun) -> int:
        segment = run.offset + len(run)
        wanted = self.tokens if self.tokens is not None else math.ceil((self.share or 0.0) * segment)
        return min(max(wanted - run.offset, 0), len(run))
