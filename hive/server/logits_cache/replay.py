"""One request's walk through the trie (paper, Algorithm 1).

At each node the request chooses *its own* token, under its own policy, seed and sampling rule; while the token has a
node it goes on, through any branch that anyone explored.  The last chosen token is always kept: where its node is
missing, the model goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum, auto

from hive.server.logits_cache.packing import CorruptRowError
from hive.server.logits_cache.policies import Policy
from hive.server.logits_cache.trie import Node


class Stop(StrEnum):
    """Why a replay ended."""

    FINISHED = "finished"
    """The request is complete: the model never runs."""
    DIVERGED = "diverged"
    """A token was drawn that nobody took here before."""
    UNDECIDED = "undecided"
    """The kept head is too short for this draw, or for the log-probabilities asked for; the model decides."""
    UNKNOWN = "unknown"
    """The request's first state is not in the cache."""
    CORRUPT = "corrupt"
    """The bytes of the kept row have changed in memory; the model decides."""


STEP_BYTES = 4096
"""A whole row takes as long to draw from as several heads: so many bytes count as a step of work."""


class Verdict(Enum):
    """What a request says of a chosen token."""

    GOES_ON = auto()
    FINISHED = auto()
    REFUSED = auto()
    """The token was not taken: the node does not tell all that the request wants to know of it."""


class Replay:
    """A walk that can be made in slices: the scheduler's other requests do not wait for a long one."""

    def __init__(self, node: Node | None, policy: Policy, *, keep_path: bool = True) -> None:
        self.stop: Stop | None = Stop.UNKNOWN if node is None else None
        """None while there is more to replay."""
        self.tokens = 0
        """Tokens replayed so far."""
        self.path: list[Node] | None = [] if keep_path else None
        """The nodes that tokens were taken from; they keep their rows in memory."""
        self._node = node
        self.policy = policy

    def resume(self, node: Node) -> None:
        """Go on from the node that was missing."""
        self._node, self.stop = node, None

    @property
    def node(self) -> Node | None:
        """Where it stands: where the next token is drawn, or would have been."""
        return self._node

    def run(self, take: Callable[[int, Node], Verdict], limit: int) -> None:
        """Replay on, for ``limit`` steps of work at most (a token, or a node that the policy looks ahead at).

        ``take(token, node)`` appends a token to the request unless it refuses; after it said that the request is
        finished, nothing more is drawn.
        """
        try:
            self._run(take, limit)
        except CorruptRowError:
            # Whatever read the row did so before it changed anything.
            self.stop = Stop.CORRUPT

    def _run(self, take: Callable[[int, Node], Verdict], limit: int) -> None:
        policy = self.policy
        while limit > 0 and self.stop is None:
            node = self._node
            assert node is not None
            ahead = policy.prepare(node, limit)
            limit -= ahead
            if limit <= 0:
                return
            limit -= 1 + len(node.row) // STEP_BYTES
            token = policy.draw(node)
            verdict = Verdict.REFUSED if token is None else take(token, node)
            if token is None or verdict is Verdict.REFUSED:
                self.stop = Stop.UNDECIDED
                return
            policy.advance()
            self.tokens += 1
            if self.path is not None:
                self.path.append(node)
            if verdict is Verdict.FINISHED:
                self.stop = Stop.FINISHED
                return
            self._node = node.child(token)
            if self._node is None:
                self.stop = Stop.DIVERGED
