"""The walk of one request through the trie (paper, Algorithm 1).

At each node the request draws *its own* token, with its own policy, seed and sampling rule.  It continues while that
token has a node, through any branch that was ever explored.  The last token is always kept: if it has no node, the
model continues from there.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum, auto

from hive.server.logits_cache.policies import Policy
from hive.server.logits_cache.trie import Node


class Stop(StrEnum):
    """Why a replay ended."""

    FINISHED = "finished"
    """The request is complete: the model never runs."""
    DIVERGED = "diverged"
    """It drew a token that no earlier request took here."""
    UNDECIDED = "undecided"
    """The kept head is too short for this draw, or for the log-probabilities asked for: the model decides."""
    UNKNOWN = "unknown"
    """The request's first state is not in the cache."""


STEP_BYTES = 4096
"""Bytes of a row that count as a step of work: drawing from a whole row takes as long as drawing from several heads."""


class Verdict(Enum):
    """The request's answer to a drawn token."""

    CONTINUES = auto()
    FINISHED = auto()
    REFUSED = auto()
    """The token was not taken: the node lacks something that the request wants to report about it."""


class Replay:
    """A walk in slices, so that a long one does not delay the scheduler's other requests."""

    def __init__(self, node: Node | None, policy: Policy, *, keep_path: bool = True) -> None:
        self.stop: Stop | None = Stop.UNKNOWN if node is None else None
        """None while there is more to replay."""
        self.tokens = 0
        """Tokens replayed so far."""
        self.path: list[Node] | None = [] if keep_path else None
        """The nodes that tokens were taken from, which keeps their rows in memory; None if not needed."""
        self._node = node
        self.policy = policy

    def resume(self, node: Node) -> None:
        """Continue from the node that was missing."""
        self._node, self.stop = node, None

    def run(self, take: Callable[[int, Node], Verdict], limit: int) -> None:
        """Continue the replay for at most ``limit`` steps of work: a token, or a node that the policy looks ahead at.

        ``take(token, node)`` appends a token to the request unless it refuses it.  Once it says that the request is
        finished, nothing more is drawn.
        """
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
