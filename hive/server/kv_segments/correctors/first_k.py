"""A corrector that recomputes the beginning of each segment.

When a segment is encoded alone, its first tokens attract all attention that has nowhere else to go.  When it is encoded
behind another context, they carry most of what that context was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hive.server.kv_segments.correctors.base import (
    DEFAULT_SHARE,
    Corrector,
    PlacedRun,
    Settings,
    check_count,
    check_share,
)
from hive.server.request_tag import RequestError


@dataclass(frozen=True)
class FirstK(Corrector):
    """Recomputes the first ``tokens`` of each segment, or else its first ``share`` (rounded up).

    If the radix tree has served some of these tokens, they are exact, and no others are recomputed instead.
    """

    tokens: int | None = None
    share: float = DEFAULT_SHARE

    kind = "first-k"
    settings: ClassVar[Settings] = {"share": check_share, "tokens": check_count}

    @classmethod
    def of_request(cls, settings: Mapping[str, Any], field: str) -> Self:
        corrector = super().of_request(settings, field)
        if "share" in settings and "tokens" in settings:
            raise RequestError(f"{field}.tokens", "must not be given together with share")
        return corrector

    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        return [index for run in placed for index in range(run.start, run.start + self._first(run))]

    def most(self, placed: Sequence[PlacedRun]) -> int:
        return sum(map(self._first, placed))

    def _first(self, run: PlacedRun) -> int:
        segment = run.offset + len(run)
        wanted = self.tokens if self.tokens is not None else math.ceil(self.share * segment)
        return min(max(wanted - run.offset, 0), len(run))
