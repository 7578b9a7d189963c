"""What an eviction policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hive.eviction.node import NodeRecord

Score = Callable[[str], float]
"""An agent's contribution score, in [0, 1]."""


class EvictionPolicy(ABC):
    """Says what each node is worth.  It is told of every reuse and every eviction, and may learn from them."""

    name: str
    """As the flag of the server says it."""
    trims: bool
    """Whether only as much of a victim's tail goes as is needed, and evictions are batched; else whole leaves go."""

    def reused(self, node: NodeRecord, tokens: int, clock: int) -> None:  # noqa: B027 (learning is optional)
        """``tokens`` of a node are about to be used again; its record still is that of the last use."""

    def evicted(self, node: NodeRecord, tokens: int, clock: int) -> None:  # noqa: B027 (learning is optional)
        """``tokens`` of a node are gone."""

    @abstractmethod
    def class_of(self, node: NodeRecord) -> int:
        """The class a node is in: all that its worth depends on, beside its age."""

    @abstractmethod
    def worth(
        self, classes: NDArray[np.int32], used: NDArray[np.int64], clock: int, shares: Mapping[str, float]
    ) -> NDArray[np.float64]:
        """Worth of nodes, lowest first to go; nodes of equal worth go in the order of their last use.

        Args:
            classes: [n], from :meth:`class_of`.
            used: [n], clocks of the last use.
            clock: now.
            shares: of each agent's KV in what is resident, in [0, 1].
        """
