"""The paper's policy, as written (section 7.2): evict the KV of the agent with the lowest contribution first."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from hive.server.eviction.agent_numbers import AgentNumbers
from hive.server.eviction.base import EvictionPolicy, Score, Weigh
from hive.server.eviction.node import NodeRecord


class ContributionPolicy(EvictionPolicy):
    """Ranks nodes by (contribution score of the agent that computed the KV, last use), lowest first."""

    name = "paper"
    about = "the KV of the agent with the lowest contribution score"
    trims = False

    def __init__(self, score: Score) -> None:
        self._score = score
        self._numbers = AgentNumbers()

    @classmethod
    def of_server(cls, score: Score) -> Self:
        return cls(score)

    def class_of(self, node: NodeRecord) -> int:
        return self._numbers.of(node.producer)

    def forget(self, agent: str) -> None:
        self._numbers.forget(agent)

    def weighing(self, clock: int, now: float) -> Weigh:
        scores = self._scores()

        def weigh(classes: NDArray[np.int32], used: NDArray[np.int64]) -> NDArray[np.float64]:
            nonlocal scores
            if len(scores) < len(self._numbers):
                # A parent that became a leaf during this eviction may belong to an agent that had no leaf before.
                scores = self._scores()
            return scores[classes]

        return weigh

    def _scores(self) -> NDArray[np.float64]:
        """By agent's number; 0 of what has no agent of its own."""
        scores = np.zeros(len(self._numbers))
        for name, number in self._numbers:
            scores[number] = self._score(name)
        return scores
