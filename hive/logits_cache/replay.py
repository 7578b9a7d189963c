"""One request's walk through the trie (paper, Algorithm 1, step-wise sampling).

At each node the request draws *its own* token, under its own seed and sampling rule; while the drawn token has a
node it goes on, through any branch that anyone explored.  The last drawn token is always kept: where its node is
missing, the model goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from hive.logits_cache.sampling import SamplingRule, draw, uniform
from hive.logits_cache.trie import LogitsTrie, Node


class Stop(StrEnum):
    """Why a replay ended."""

    FINISHED = "finished"
    """The request is complete: the model never runs."""
    DIVERGED = "diverged"
    """A token was drawn that nobody took here before."""
    UNDECIDED = "undecided"
    """The kept head is too short for this draw; the model decides."""
    UNKNOWN = "unknown"
    """The request's first state is not in the cache."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Outcome of one walk."""

    tokens: int
    stop: Stop


def replay(
    trie: LogitsTrie,
    entry: bytes,
    rule: SamplingRule,
    seed: int,
    position: int,
    take: Callable[[int], bool],
) -> Replay:
    """Draw tokens from kept distributions, beginning at the state ``entry``.

    ``position`` is the index of the last token of that state.  ``take(token)`` appends a drawn token to the
    request and says whether the request goes on; after it has said no, nothing more is drawn.
    """
    node = trie.find(entry)
    if node is None:
        return Replay(0, Stop.UNKNOWN)
    path: list[Node] = []
    stop = Stop.DIVERGED
    while node is not None:
        token = draw(node.head, rule, uniform(seed, position + len(path)))
        if token is None:
            stop = Stop.UNDECIDED
            break
        path.append(node)
        if not take(token):
            stop = Stop.FINISHED
            break
        node = node.child(token)
    trie.touch(path)
    return Replay(len(path), stop)
