"""The sampler: one uniform number per (seed, position), and inverse CDF over a fixed order of the tokens.

The order is the head's (logit descending, token id ascending), then the rest of the vocabulary by token id, so nothing
needs a sort of the whole row.  The live server and replay call the same :func:`draw`: a replayed token is by
construction the one that the live sampler draws from the same row.  The token does not depend on the rest of the
batch, and the draw rarely needs more than the head of the distribution.  SGLang's own seeded sampler has none of these
properties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    """The finaliser of splitmix64: a bijection of 64-bit integers in which any change flips half the bits."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) with 53 random bits, a pure function of its arguments.

    ``position`` is the index of the last token before the drawn one; ``seed`` may be any integer.
    """
    return (_mix((_mix(seed & _MASK) + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """Temperature and truncation of one request, rounded to float32 as in SGLang's batch tensors.

    ``top_k`` counts tokens (1 is greedy).  ``top_p`` keeps a token if the mass before it is at most this.  ``min_p`` is
    relative to the most likely token.  All three apply to the untruncated distribution, as in SGLang ("joint" order).
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @classmethod
    def of(cls, temperature: float, top_k: int, top_p: float, min_p: float) -> Self:
        """Return the rule for the parameters that a user gave."""
        return cls(
            float(np.float32(temperature)), int(top_k), float(np.float32(top_p)), float(np.float32(min_p))
        )

    @classmethod
    def of_params(cls, params: Any) -> Self:
        """Return the rule of SGLang's ``SamplingParams``, which has parameters of the same names."""
        return cls.of(*(getattr(params, item.name) for item in fields(cls)))

    def kept(self, weights: NDArray[np.float64], total: float) -> int:
        """Return how many tokens of a row the rule keeps, at least one.

        ``weights`` (float64, ``[n]``) are those of the whole row in descending order, ``total`` is their sum.
        """
        kept = min(max(self.top_k, 1), len(weights))
        if self.top_p < 1.0:
            starts = np.cumsum(weights) - weights
            kept = min(kept, int(np.searchsorted(starts, self.top_p * total, side="right")))
        if self.min_p > 0.0:
            kept = min(kept, int((weights >= self.min_p).sum()))
        return max(kept, 1)

    @property
    def truncates(self) -> bool:
        return self.top_p < 1.0 or self.min_p > 0.0

    @property
    def greedy(self) -> bool:
        return self.top_k <= 1


class DrawTable:
    """A precomputed table for any number of draws from one head under one rule."""

    __slots__ = ("_cases", "_first", "_ids", "_size")

    def __init__(self, head: Head, rule: SamplingRule) -> None:
        self._ids, self._size = head.ids, len(head.ids)
        self._first = int(head.ids[0]) if rule.greedy and self._size else None
        # Cumulative weights to search, the factor for u, and whether the kept tokens end inside the head.
        self._cases: list[tuple[NDArray[np.float64], float, bool]] = []
        if rule.greedy or not self._size:
            return
        weights = head.weights(rule.temperature)
        cumulative = np.cumsum(weights)
        # The drawn index grows with the normaliser: if both bounds give the same index, so does the true value.
        for normaliser in dict.fromkeys(head.normaliser_bounds(rule.temperature, weights)):
            self._cases += _cases(head, weights, cumulative, rule, normaliser)

    def draw(self, u: float) -> int | None:
        """Return the drawn token, or None; see :func:`draw`."""
        if self._first is not None:
            return self._first
        found = -1
        for cumulative, scale, ends in self._cases:
            index = int(cumulative.searchsorted(u * scale, side="right"))
            if ends:
                index = min(index, len(cumulative) - 1)
            elif index == self._size:
                return None
            if found not in (-1, index):
                return None
            found = index
        return None if found < 0 else int(self._ids[found])

    def probability(self, token: int) -> float | None:
        """Return a token's probability under the rule: 0 if it is cut off, None if it is beyond the head.

        If the head only bounds the row's sum, this is the lower bound.
        """
        if self._first is not None:
            return float(token == self._first)
        (at,) = np.nonzero(self._ids == token)
        if len(at) == 0:
            return None
        cumulative, scale, _ = self._cases[-1]
        index = int(at[0])
        if index >= len(cumulative):
            return 0.0
        return float(cumulative[index] - (cumulative[index - 1] if index else 0.0)) / scale


def draw(head: Head, rule: SamplingRule, u: float) -> int | None:
    """Return the token that ``u`` selects from the row behind ``head``; None if the head does not determine it.

    Every answer is the one that the whole row would give.  A complete head always answers.
    """
    return DrawTable(head, rule).draw(u)


def _cases(
    head: Head,
    weights: NDArray[np.float64],
    cumulative: NDArray[np.float64],
    rule: SamplingRule,
    normaliser: float,
) -> list[tuple[NDArray[np.float64], float, bool]]:
    """Return the cases on which a draw must agree if the row's weights add up to ``normaliser``."""
    kept, inside = kept_in_head(head, weights, cumulative, rule, normaliser)
    if inside:
        return [(cumulative[:kept], float(cumulative[kept - 1]), True)]
    whole = (cumulative, normaliser, False)
    if rule.top_k < head.support or rule.truncates:
        # The cut lies in the tail: the kept mass is somewhere between that of the head and that of the whole row.
        return [(cumulative, float(cumulative[-1]), False), whole]
    return [whole]


def kept_in_head(
    head: Head,
    weights: NDArray[np.float64],
    cumulative: NDArray[np.float64],
    rule: SamplingRule,
    normaliser: float,
) -> tuple[int, bool]:
    """Return how many of a head's tokens a rule keeps, and whether it keeps no others.

    Args:
        head: the head.
        weights: the head's (float64, ``[n]``).
        cumulative: their running sum (float64, ``[n]``).
        rule: the rule.
        normaliser: the sum of the weights of the whole row.
    """
    n = len(weights)
    kept = min(max(rule.top_k, 1), n)
    inside = head.complete or rule.top_k <= n
    if rule.top_p < 1.0:
        nucleus = int(np.searchsorted(cumulative - weights, rule.top_p * normaliser, side="right"))
        inside = inside or nucleus < n or bool(cumulative[-1] > rule.top_p * normaliser)
        kept = min(kept, nucleus)
    if rule.min_p > 0.0:
        likely = max(int(np.searchsorted(-weights, -rule.min_p, side="right")), 1)
        inside = inside or likely < n
        kept = min(kept, likely)
    return kept, inside


def draw_live(
    head: Head,
    row: Callable[[], NDArray[np.float32]],
    rule: SamplingRule,
    u: float,
    remaining: Mapping[int, float] | None = None,
) -> int:
    """Draw as the live sampler does: from the head if it determines the token, from the whole row otherwise.

    ``row`` returns the whole row (float32, ``[vocabulary]``); it is called only when needed.  ``remaining`` multiplies
    the probabilities of some tokens after truncation: this excludes what samples without replacement used up.
    """
    if not remaining:
        token = draw(head, rule, u)
        if token is not None:
            return token
    ids, weights = _kept(head, row(), rule)
    if remaining:
        factors = np.array([remaining.get(token, 1.0) for token in ids.tolist()])
        # If nothing is left, any sample repeats an earlier one: draw without exclusions.
        weights = weights * factors if (weights * factors).any() else weights
    cumulative = np.cumsum(weights)
    target = u * float(cumulative[-1])
    return int(ids[min(int(np.searchsorted(cumulative, target, side="right")), len(ids) - 1)])


def probability(head: Head, row: Callable[[], NDArray[np.float32]], rule: SamplingRule, token: int) -> float:
    """Return the probability of drawing ``token`` from a row under the rule; 0 if the rule cuts it off."""
    ids, weights = _kept(head, row(), rule)
    return float(weights[ids == token].sum() / weights.sum())


def _kept(
    head: Head, row: NDArray[np.float32], rule: SamplingRule
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the tokens of a whole row that a rule keeps, in sampling order, and their weights (both ``[kept]``).

    If a cut lies in the tail, tokens as likely as the last kept one are kept, too.
    """
    if rule.greedy:
        return np.array([head.ids[0] if len(head.ids) else row.argmax()]), np.ones(1)
    weights = np.exp((row.astype(np.float64) - float(row.max())) / rule.temperature)
    inside = weights[head.ids]
    support = int((weights > 0.0).sum())
    if rule.top_k < support or rule.truncates:
        ordered = np.sort(weights)[::-1]
        kept = min(rule.kept(ordered, float(weights.sum())), support)
        if kept <= len(inside):
            return head.ids[:kept].astype(np.int64), inside[:kept]
        weights[weights < ordered[kept - 1]] = 0.0
    weights[head.ids] = 0.0
    (tail,) = np.nonzero(weights)
    return np.concatenate((head.ids.astype(np.int64), tail)), np.concatenate((inside, weights[tail]))
