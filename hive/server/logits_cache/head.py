"""One next-token distribution, cut to its head, with what is needed to sample from it exactly.

A full row costs 304 KB per token for a 152k vocabulary in bf16; nearly all of it is never drawn.  A
:class:`Head` keeps the most likely tokens in the sampler's order (logit descending, token id ascending) and the
normaliser of the whole row, so that a draw that falls inside the head is exactly the draw from the whole row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

SUM_TOLERANCE = 1e-6
"""Relative error allowed for normalisers that were summed in float32 over a whole vocabulary."""

MIN_PROBABILITY = 4e-5
"""Least probability of a token that is worth its bytes in a recorded head.

Cutting by probability loses the least mass for a given number of tokens kept.  On the small model's rows at T = 1
this keeps 205 tokens of 49,152 on average and leaves out 1.0% of the mass; at T = 0.7, 36 tokens and 0.1%.
"""

MIN_TOKENS = 20
"""Tokens kept however unlikely: as many as an OpenAI client may ask the log-probabilities of."""


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
        """A head from the top-k entries of a row, in any order.

        Top-k picks arbitrarily among entries tied with the last one, so unless everything finite is there, those
        are dropped.  A row whose top-k are all equal keeps nothing: such a row cannot be replayed.
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

    @classmethod
    def of_row(cls, row: NDArray[np.float32], temperature: float) -> Self:
        """The untruncated head of a full row (float32, ``[vocabulary]``)."""
        (ids,) = np.nonzero(row > -np.inf)
        logits = row[ids]
        if len(ids) == 0:
            raise ValueError("a row of logits has no finite entry: every token is forbidden")
        weights = np.exp((logits.astype(np.float64) - float(logits.max())) / temperature)
        return cls.select(ids, logits, len(ids), {temperature: float(weights.sum())})

    @property
    def complete(self) -> bool:
        """Whether every token of non-zero probability is in the head."""
        return self.support == len(self.ids)

    def weights(self, temperature: float) -> NDArray[np.float64]:
        """Unnormalised probabilities of the head's tokens, the first one's being 1 (float64, ``[n]``)."""
        weights = self.logits.astype(np.float64)
        weights -= weights[0]
        weights /= temperature
        return np.exp(weights, out=weights)

    def normaliser_bounds(self, temperature: float, weights: NDArray[np.float64]) -> tuple[float, float]:
        """Lower and upper bound of the whole row's sum of weights at a temperature; equal where it is known.

        At a temperature nobody summed, the tail is bounded from a sum at another one: with x_i in (0, 1] the
        tail's weights relative to the last kept token and m of them, ``sum(x_i ** r)`` lies between the sum and
        ``m * mean ** r`` by Jensen's inequality, in the order that r >= 1 (cooler) or r < 1 (warmer) decides.
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
        # Nothing in the tail is likelier than the last kept token.
        lower, upper = inside, inside + left_out * float(np.exp(gap / temperature))
        for other, total in self.normalisers.items():
            other_weights = self.weights(other)
            last = float(other_weights[-1])
            if last == 0.0:
                # So cold that the sum says nothing of the tail.
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
        """The head without tokens less likely than ``min_probability`` at its warmest temperature, though not
        without its first :data:`MIN_TOKENS`."""
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
        """The same head with the normaliser at other temperatures."""
        return type(self)(self.ids, self.logits, self.support, normalisers)
