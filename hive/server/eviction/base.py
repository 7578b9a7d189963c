"""What an eviction policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hive.server.eviction.node import NodeRecord

Score = Callable[[str], float]
"""An agent's contribution score, in [0, 1]."""

Weigh = Callable[[NDArray[np.int32], NDArray[np.int64]], NDArray[np.float64]]
"""Worth of nodes, [n], lowest first to go; nodes of equal worth go in the order of their last use.

Of their classes, [n], from :meth:`EvictionPolicy.class_of`, and the clocks of their last use, [n].
"""


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

    def forget(self, agent: str) -> None:  # noqa: B027 (so is remembering)
        """An agent is over, and nothing on the device names it any more."""

    @abstractmethod
    def class_of(self, node: NodeRecord) -> int:
        """The class a node is in: all that its worth depends on, beside its age."""

    @abstractmethod
    def weighing(self, clock: int, shares: Mapping[str, float]) -> Weigh:
        """What nodes are worth during one eviction.

        What depends on all agents is looked up here: parents that become leaves on the way are weighed one by one,
        and there may be a thousand agents.

        Args:
            clock: now.
            shares: of what is resident, the part that each agent used last, in [0, 1].
        """
