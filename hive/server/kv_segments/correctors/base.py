"""The interface of a corrector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """A run of placed tokens of one segment, in a request's row of slots."""

    start: int
    """Index of the first token in the row."""
    end: int
    """Index behind the last one."""
    offset: int = 0
    """Index of the first token within its segment; the radix tree may have served the tokens before it."""

    def __len__(self) -> int:
        return self.end - self.start


class Corrector(ABC):
    """Chooses which placed tokens to recompute.

    Stored KV was computed in another context than the one it is placed in.  The more of it is recomputed, the closer
    the result is to the exact one, and the longer the first token takes.
    """

    probes: bool = False
    """Whether it needs the deviation of the placed values, which takes a pass through the first layers."""

    @abstractmethod
    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        """Return the indices to recompute, ascending.

        Args:
            placed: ascending and disjoint.
            deviation: of all placed tokens in order, float32 ``[tokens]``: squared distance, at the check layer,
                between the values computed in this context and the placed ones.  None unless :attr:`probes`.
        """

    @abstractmethod
    def most(self, placed: Sequence[PlacedRun]) -> int:
        """Return the maximum number of indices that :meth:`select` returns, whatever the deviation."""
