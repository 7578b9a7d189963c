"""How a replayed request chooses its next token (the ``replay`` field of a request's tag).

``stepwise`` draws every token from its kept distribution, exactly as the model's sampler would (paper, Algorithm 1).
``hotspot`` keeps the tokens of an earlier output where the model was sure (paper, section 6.2; approximate).
``distinct`` samples without replacement: no two outputs of a state have the same tokens (not in the paper).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache

from hive.server.logits_cache.distinct import Choice, DistinctSample
from hive.server.logits_cache.head import MIN_PROBABILITY
from hive.server.logits_cache.hotspot import HotspotRule, row_uncertainty, select
from hive.server.logits_cache.packing import unpack
from hive.server.logits_cache.residual import Drawn
from hive.server.logits_cache.sampling import DrawTable, SamplingRule, uniform
from hive.server.logits_cache.trie import Node

LARGEST_CACHED_ROW = 4096
"""Largest row, in bytes, whose table is cached: the tables of whole rows would need too much memory."""


@lru_cache(maxsize=1024)
def _table(row: bytes, rule: SamplingRule) -> DrawTable:
    """Cached, because states are sampled again and again: a second draw from a row costs a tenth of the first."""
    return DrawTable(unpack(row), rule)


def draw_table(node: Node, rule: SamplingRule) -> DrawTable:
    """Return the table for drawing from a node under a rule."""
    if len(node.row) > LARGEST_CACHED_ROW:
        return DrawTable(node.head, rule)
    return _table(node.row, rule)


class Policy(ABC):
    """The choices of one request on its walk through the trie."""

    def prepare(self, node: Node, limit: int) -> int:
        """Look ahead from ``node`` before a token is drawn there, at no more than ``limit`` nodes.

        Returns the number of nodes visited; if it equals ``limit``, there may be more to do.
        """
        return 0

    @abstractmethod
    def draw(self, node: Node) -> int | None:
        """Return the next token; None if the kept head does not decide it, or not yet."""

    @abstractmethod
    def advance(self) -> None:
        """Note that the token drawn last was taken."""


class Stepwise(Policy):
    """Draws each token with its own uniform number, by inverse CDF over the kept head."""

    def __init__(self, rule: SamplingRule, seed: int, position: int) -> None:
        """``position`` is the index of the last token of the state at which replay starts."""
        self._rule, self._seed, self._position = rule, seed, position

    def draw(self, node: Node) -> int | None:
        return draw_table(node, self._rule).draw(uniform(self._seed, self._position))

    def advance(self) -> None:
        self._position += 1


class Prefetched(Stepwise):
    """Takes tokens that were drawn ahead of the request, then continues step-wise."""

    def __init__(self, tokens: list[int], rule: SamplingRule, seed: int, position: int) -> None:
        super().__init__(rule, seed, position)
        self._tokens = iter(tokens)

    def draw(self, node: Node) -> int | None:
        token = next(self._tokens, None)
        return super().draw(node) if token is None else token


class Hotspot(Stepwise):
    """Keeps the tokens of the first output recorded here, except at its hotspots."""

    def __init__(self, rule: SamplingRule, seed: int, position: int, policy: HotspotRule) -> None:
        super().__init__(rule, seed, position)
        self._policy = policy
        self._ahead: list[Node] = []
        self._scanned = False
        self._on_path: set[int] = set()
        self._hot: set[int] = set()
        self.divergence = 0.0
        """Estimate of KL(hotspot || exact) in nats over the replayed tokens: one sample of the sum in
        :mod:`hive.server.logits_cache.hotspot`.  A kept token beyond its row's head counts as one of the least likely
        inside it."""

    def prepare(self, node: Node, limit: int) -> int:
        if self._scanned:
            if id(node) in self._on_path:
                return 0
            # A resampled token led to another cached branch: follow that one from here.
            self._ahead, self._scanned = [], False
        done = 0
        last = self._ahead[-1] if self._ahead else None
        following: Node | None = node if last is None else next(iter(last.children), None)
        while following is not None and done < limit:
            known, temperature = following.uncertainty, self._rule.temperature
            if known is None or known[0] != temperature:
                following.uncertainty = temperature, row_uncertainty(following.head, temperature)
            self._ahead.append(following)
            done += 1
            following = next(iter(following.children), None)
        if following is None:
            self._finish_scan()
            return min(done, max(limit - 1, 0))
        return done

    def _finish_scan(self) -> None:
        chosen = select(
            [node.uncertainty[1] if node.uncertainty else 0.0 for node in self._ahead], self._policy
        )
        self._on_path = {id(node) for node in self._ahead}
        self._hot = {id(node) for node, hot in zip(self._ahead, chosen.tolist(), strict=True) if hot}
        self._scanned = True

    def draw(self, node: Node) -> int | None:
        cached = next(iter(node.children), None)
        if cached is None or id(node) in self._hot:
            return super().draw(node)
        probability = draw_table(node, self._rule).probability(cached.token)
        # The rule may forbid a token that was recorded under another rule: then it cannot be kept.
        if probability == 0.0:
            return super().draw(node)
        self.divergence -= math.log(MIN_PROBABILITY if probability is None else probability)
        return cached.token


class Distinct(Policy):
    """Excludes the outputs that earlier samples of the state used up."""

    def __init__(self, sample: DistinctSample, seed: int, position: int) -> None:
        self._sample, self._seed, self._position = sample, seed, position
        self._drawn: Drawn | None = None

    def draw(self, node: Node) -> int | None:
        match self._sample.choice:
            case Choice.WAIT:
                self._drawn = None
            case Choice.BRANCH:
                self._drawn = self._sample.draw(node.head, uniform(self._seed, self._position))
            case int() as token:
                self._drawn = self._sample.following(token)
        return None if self._drawn is None else self._drawn.token

    def advance(self) -> None:
        assert self._drawn is not None
        self._sample.advance(*self._drawn)
        self._position += 1
