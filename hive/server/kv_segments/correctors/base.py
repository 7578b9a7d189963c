"""What a corrector is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Placed tokens of one segment, in a request's row of slots."""

    start: int
    """Index of the first token in the row."""
    end: int
    """Index behind the last one."""
    offset: int = 0
    """Of the first token within its segment, whose beginning the exact tree may have served."""

    def __len__(self) -> int:
        return self.end - self.start


class Corrector(ABC):
    """Chooses what of the placed KV is computed again.

    Stored KV was computed behind another context than it is placed behind.  The more of it is computed again, the
    nearer the request is to exact, and the longer its first token takes.
    """

    probes: bool = False
    """Whether it needs to be told how far the placed values are off, which takes a pass through the first layers."""

    @abstractmethod
    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        """Indices to compute again, ascending.

        Args:
            placed: ascending and disjoint.
            deviation: of the placed tokens, one after the other, float32 [tokens]: squared distance at the check
                layer between values computed in this context and the placed ones.  None unless :attr:`probes`.
        """

    @abstractmethod
    def most(self, placed: Sequence[PlacedRun]) -> int:
        """How many indices :meth:`select` may return at the most, whatever the deviation."""
