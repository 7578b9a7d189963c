"""One next-token distribution, cut to its head, with what is needed to sample from it exactly.

A full row of a 152k vocabulary in bf16 takes 304 KB per token, and nearly all of it is never drawn.  A :class:`Head`
keeps the most likely tokens in the sampler's order (logit descending, token id ascending) and the normaliser of the
whole row, so a draw that falls inside the head is exactly the draw from the whole row.

Log-probabilities of replayed tokens have the engine's form: those of the distribution after temperature and before
truncation, computed from the recorded row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

SUM_TOLERANCE = 1e-6
"""Relative error allowed for normalisers that were summed in float32 over a whole vocabulary."""

MIN_PROBABILITY = 4e-5
"""Probability below which a token is not recorded in a head.

Cutting by probability loses the least mass for a given number of tokens kept.  On the small model's rows at T = 1
this keeps 205 tokens of 49,152 on average and leaves out 1.0% of the mass; at T = 0.7, 36 tokens and 0.1%.
"""

MIN_TOKENS = 20
"""Tokens kept however unlikely they are: an OpenAI client may ask for the log-probabilities of so many."""


@dataclass(frozen=True, slots=True)
class Head:
    """The most likely tokens of one row of logits.

    ``ids`` (int32, ``[n]``) and ``logits`` (float32, ``[n]``) are in sampling order; every token left out comes
    after them in that order.  ``support`` counts the row's finite logits, so ``support == n`` means that nothing
    was left out.  ``normalisers`` maps a temperature T to the sum of ``exp((l - logits[0]) / T)`` over the
    *whole* row.
    """

    ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    support: int
    normalisers: Mapping[float, float]

    @classmethod
    def select(
        cls,
        ids: NDArray[Any],
        logits: NDArray[np.float32],
        support: int,
        normalisers: Mapping[float, float],
    ) -> Self:
        """Return a head from the top-k entries of a row, given in any order.

        Top-k picks arbitrarily among entries tied with the last one.  So these are dropped, unless all finite entries
        are given.  A row whose top-k are all equal gives an empty head and cannot be replayed.
        """
        finite = logits > -np.inf
        if not finite.all():
            ids, logits = ids[finite], logits[finite]
        if support > len(ids):
            above = logits > logits.min()
            ids, logits = ids[above], logits[above]
        # Adding zero turns -0.0 into 0.0: equal numbers must be equal bits once packed.
        logits = logits + np.float32(0.0)
        order = np.lexsort((ids, -logits))
        return cls(ids[order].astype(np.int32), logits[order], support, normalisers)

    @property
    def complete(self) -> bool:
        """Whether every token of non-zero probability is in the head."""
        return self.support == len(self.ids)

    def weights(self, temperature: float) -> NDArray[np.float64]:
        """Return unnormalised probabilities of the head's tokens (float64, ``[n]``); the first one's is 1."""
        weights = self.logits.astype(np.float64)
        weights -= weights[0]
        weights /= temperature
        return np.exp(weights, out=weights)

    def normaliser_bounds(self, temperature: float, weights: NDArray[np.float64]) -> tuple[float, float]:
        """Return lower and upper bound of the whole row's sum of weights at a temperature; equal if it is known.

        At a temperature without a recorded sum, the tail is bounded from the sum at another one.  With x_i in (0, 1]
        the tail's m weights relative to the last kept token, ``sum(x_i ** r)`` lies between ``sum(x_i)`` and
        ``m * mean ** r`` by Jensen's inequality; r >= 1 (cooler) or r < 1 (warmer) decides which is the lower bound.
        """
        if not self.complete:
            known = self.normalisers.get(temperature)
            if known is not None:
                return known, known
        inside = float(weights.sum())
        if self.complete:
            return inside, inside
        left_out = self.support - len(self.ids)
        gap = float(self.logits[-1]) - float(self.logits[0])
        # No token in the tail is more likely than the last kept token.
        lower, upper = inside, inside + left_out * float(np.exp(gap / temperature))
        for other, total in self.normalisers.items():
            other_weights = self.weights(other)
            last = float(other_weights[-1])
            if last == 0.0:
                # At so low a temperature the sum says nothing about the tail.
                continue
            rest = total - float(other_weights.sum())
            slack = SUM_TOLERANCE * total
            least = min(max(rest - slack, 0.0) / last, left_out)
            most = min((rest + slack) / last, left_out)
            exponent = other / temperature
            spread_least, spread_most = (left_out * (part / left_out) ** exponent for part in (least, most))
            tail_least, tail_most = (spread_least, most) if exponent >= 1 else (least, spread_most)
            scale = float(np.exp(gap / temperature))
            lower = max(lower, inside + scale * tail_least)
            upper = min(upper, inside + scale * tail_most)
        return lower, upper

    def trimmed(self, min_probability: float = MIN_PROBABILITY) -> Self:
        """Return the head without tokens less likely than ``min_probability`` at its highest temperature; the first
        :data:`MIN_TOKENS` always stay."""
        size = len(self.ids)
        if min_probability > 0.0 and size > MIN_TOKENS and self.normalisers:
            temperature = max(self.normalisers)
            weights = self.weights(temperature)
            least = min_probability * self.normalisers[temperature]
            size = min(size, max(MIN_TOKENS, int(np.searchsorted(-weights, -least, side="right"))))
        if size == len(self.ids):
            return self
        return type(self)(self.ids[:size], self.logits[:size], self.support, self.normalisers)

    def with_normalisers(self, normalisers: Mapping[float, float]) -> Self:
        """Return the same head with other normalisers."""
        return type(self)(self.ids, self.logits, self.support, normalisers)


LEAST = float(np.finfo(np.float32).min)
"""Stands for minus infinity, as in the engine."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities (natural) at one position."""

    token: float
    top_values: list[float]
    top_ids: list[int]
    chosen_values: list[float]
    """Those of the token ids that the request asked for."""


def token_logprobs(
    head: Head, temperature: float, token: int, top: int, chosen: Sequence[int]
) -> TokenLogprobs | None:
    """Return the log-probabilities for a request that asked for ``top`` alternatives and the ``chosen`` ids.

    Returns None if the head is too short for them, or if the row's sum at this temperature is unknown.
    """
    weights = head.weights(temperature)
    low, high = head.normaliser_bounds(temperature, weights)
    if low != high or (top > len(head.ids) and not head.complete):
        return None
    norm = math.log(low)
    values = (head.logits.astype(np.float64) - float(head.logits[0])) / temperature - norm
    places = {int(found): place for place, found in enumerate(head.ids)} if chosen else {}
    if not head.complete and any(wanted not in places for wanted in chosen):
        return None
    (at,) = np.nonzero(head.ids == token)
    if len(at) == 0:
        return None
    return TokenLogprobs(
        float(values[at[0]]),
        values[:top].tolist(),
        head.ids[:top].tolist(),
        [float(values[places[wanted]]) if wanted in places else LEAST for wanted in chosen],
    )
