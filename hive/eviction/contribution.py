"""The paper's policy, as written (section 7.2): the KV of the agent that contributes least goes first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hive.eviction.base import EvictionPolicy, Score
from hive.eviction.node import NodeRecord


class ContributionPolicy(EvictionPolicy):
    """(score of the agent that owns the node, last use).

    The owner is the agent that computed the KV; within one score the least recently used goes first.
    """

    name = "paper"
    trims = False

    def __init__(self, score: Score) -> None:
        self._score = score
        self._numbers: dict[str, int] = {}

    def class_of(self, node: NodeRecord) -> int:
        return self._numbers.setdefault(node.producer, len(self._numbers))

    def worth(
        self, classes: NDArray[np.int32], used: NDArray[np.int64], clock: int, shares: Mapping[str, float]
    ) -> NDArray[np.float64]:
        scores = np.array([self._score(name) for name in self._numbers])
        return scores[classes]
