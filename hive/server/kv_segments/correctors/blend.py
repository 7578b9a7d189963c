"""CacheBlend (Yao et al., 2024): recompute the tokens that deviate most at an early layer.

All placed tokens go through the first layers.  Those whose values differ most from the placed ones at the check layer
go through all layers.  To choose whole blocks is a little less selective, but leaves the other blocks untouched:
siblings that placed the same segment then differ in few blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

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


@dataclass(frozen=True)
class Blend(Corrector):
    """Recomputes the ``share`` of all placed tokens that deviate most; whole blocks of ``block`` tokens if given.

    Blocks are counted from the start of each segment.
    """

    share: float = DEFAULT_SHARE
    block: int | None = None

    kind = "blend"
    settings: ClassVar[Settings] = {"share": check_share, "block": check_count}
    probes = True

    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        if deviation is None or len(deviation) != sum(map(len, placed)):
            raise ValueError("blend needs the deviation of every placed token")
        indices = np.concatenate([np.arange(run.start, run.end) for run in placed] or [np.zeros(0, np.int64)])
        wanted = self._wanted(placed)
        if wanted == 0:
            return []
        if self.block is None:
            chosen = np.argpartition(-deviation, wanted - 1)[:wanted]
            return sorted(indices[chosen].tolist())
        blocks = list(self._blocks(placed))
        worst = sorted(range(len(blocks)), key=lambda at: -float(deviation[blocks[at]].sum()))
        found: list[int] = []
        for at in worst:
            if len(found) >= wanted:
                break
            found += indices[blocks[at]].tolist()
        return sorted(found)

    def most(self, placed: Sequence[PlacedRun]) -> int:
        wanted = self._wanted(placed)
        if self.block is None or wanted == 0:
            return wanted
        # Blocks are added until there are enough tokens, so the last one may start with one token missing.
        return min(wanted - 1 + self.block, sum(map(len, placed)))

    def _wanted(self, placed: Sequence[PlacedRun]) -> int:
        tokens = sum(map(len, placed))
        return max(1, int(tokens * self.share)) if tokens and self.share else 0

    def _blocks(self, placed: Sequence[PlacedRun]) -> Iterator[slice]:
        """Yield blocks as slices of all placed tokens in order; blocks are counted from the start of each segment."""
        assert self.block is not None
        first = 0
        for run in placed:
            at = 0
            while at < len(run):
                end = min(len(run), at + self.block - (run.offset + at) % self.block)
                yield slice(first + at, first + end)
                at = end
            first += len(run)
