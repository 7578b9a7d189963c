"""The interface of an eviction policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hive.server.eviction.dialogues import Dialogue
from hive.server.eviction.hints import Hint
from hive.server.eviction.node import NodeRecord

Score = Callable[[str], float]
"""An agent's contribution score, in [0, 1]."""

Weigh = Callable[[NDArray[np.int32], NDArray[np.int64]], NDArray[np.float64]]
"""Computes the worth of nodes, [n].  The lowest are evicted first; ties are broken by least recent use.

Arguments: the classes of the nodes, [n], from :meth:`EvictionPolicy.class_of`, and the clocks of their last use, [n].
"""


class EvictionPolicy(ABC):
    """Ranks nodes for eviction.  It is told of every reuse and every eviction, and may learn from them."""

    name: ClassVar[str]
    """The policy's name in the server's flag."""
    about: ClassVar[str]
    """What it evicts first, for the flag's help."""
    trims: ClassVar[bool]
    """Whether a victim loses only as much of its tail as is needed, and evictions are batched; else whole leaves go."""

    @classmethod
    def of_server(cls, score: Score) -> Self:
        """Create the policy of a server; ``score`` gives the contribution scores as of now."""
        return cls()

    def reused(self, node: NodeRecord, tokens: int, clock: int) -> None:  # noqa: B027 (learning is optional)
        """Note that ``tokens`` of a node are about to be reused; its record still describes the previous use."""

    def evicted(self, node: NodeRecord, tokens: int, clock: int) -> None:  # noqa: B027 (learning is optional)
        """Note that ``tokens`` of a node were evicted."""

    def continued(self, dialogue: Dialogue, now: float, clock: int, matched: int, old: int) -> None:  # noqa: B027
        """Note that a dialogue's next request was admitted; the dialogue still describes the previous one.

        Args:
            dialogue: the dialogue; new if its ``turn`` is 0.
            now: the time, in seconds.
            clock: the current clock, in admissions.
            matched: tokens on the previous request's path that this one matched, only used by this dialogue.
            old: tokens off that path that it matched, only used by this dialogue.
        """

    def departed(self, dialogue: Dialogue, clock: int) -> None:  # noqa: B027
        """Note that a dialogue waits for its next request."""

    def hinted(self, dialogue: Dialogue, hint: Hint, now: float) -> None:  # noqa: B027
        """Note what a client says about a dialogue."""

    def lost(self, dialogue: Dialogue, now: float, clock: int) -> None:  # noqa: B027
        """Note that the tree may no longer show when a dialogue continues, because its KV was evicted."""

    def forget(self, agent: str) -> None:  # noqa: B027 (a policy without per-agent state has nothing to forget)
        """Drop the state of an agent that has ended; no KV on the device names it any more."""

    @abstractmethod
    def class_of(self, node: NodeRecord) -> int:
        """Return the class of a node: everything that its worth depends on, except its age."""

    @abstractmethod
    def weighing(self, clock: int, now: float) -> Weigh:
        """Return the function that ranks nodes during one eviction.

        Look up here whatever depends on all agents: parents that become leaves during the eviction are ranked one by
        one, and there may be a thousand agents.

        Args:
            clock: the current clock, in admissions.
            now: the current time, in seconds, as the requests brought it.
        """
