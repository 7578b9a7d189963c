"""Hotspot sampling (paper, section 6.2): resample only where the model was unsure, keep the cached tokens elsewhere.

A step of a cached output scores high where its distribution has a large entropy, a weak favourite, and comes early
(equations 2 to 4; the paper's formulas for the decay and the normalisation did not survive in our copy of its text,
so both are named here).  Steps above a threshold, or the few highest, are drawn anew; the others keep the token of
the cached output, and replay ends where a resampled token differs from it.

**Approximate.**  Given the cached output, a kept token is certain although the model would have drawn another one
with probability ``1 - p``: more of the output repeats than under exact (step-wise) sampling.  :func:`kl_divergence`
says how far apart the two distributions are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head
from hive.server.logits_cache.sampling import SamplingRule

THRESHOLD = 0.6
"""Normalised score above which a step is resampled (the paper's)."""

DECAY_STEPS = 500.0
"""Steps over which a score falls by a factor of e (our choice: the paper's output length, as it favours earlier steps
only slightly)."""


@dataclass(frozen=True, slots=True)
class HotspotRule:
    """Which steps of a cached output are resampled; ValueError names the field that is out of range."""

    threshold: float = THRESHOLD
    """Steps with a normalised score above it are, in [0, 1); ignored if ``top_k`` is given."""
    top_k: int | None = None
    """The so many steps of highest score are."""
    decay: float = DECAY_STEPS
    """Steps over which a score falls by a factor of e; infinite for no decay."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold < 1.0:
            raise ValueError(f"threshold must be in [0, 1), got {self.threshold}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if not self.decay > 0.0:
            raise ValueError(f"decay must be a positive number of steps, got {self.decay}")


DEFAULT = HotspotRule()


def row_uncertainty(head: Head, temperature: float) -> float:
    """Entropy in nats times (1 - probability of the likeliest token), before truncation (equations 2 and 3).

    What a head leaves out is taken to be spread evenly over the tokens left out, which makes the result an upper
    bound; where its mass is only bounded, the upper bound counts.  An empty head stands for a row without a
    favourite, whose likeliest tokens are all equal: it counts as flat.
    """
    if len(head.ids) == 0:
        return math.log(head.support) * (1.0 - 1.0 / head.support)
    weights = head.weights(temperature)
    mass = _mass(head, temperature, weights)
    left_out = head.support - len(weights)
    probabilities = weights[weights > 0.0] / mass
    entropy = -float(probabilities @ np.log(probabilities))
    tail = (mass - float(weights.sum())) / mass
    if left_out > 0 and tail > 0.0:
        entropy -= tail * math.log(tail / left_out)
    return entropy * (1.0 - float(probabilities[0]))


def scores(heads: Sequence[Head], temperature: float, *, decay: float = DECAY_STEPS) -> NDArray[np.float64]:
    """Importance of each step of a cached output (float64, ``[len(heads)]``), in [0, 1] (equation 4).

    ``heads[t]`` is the distribution that output token t was drawn from.  Scores are normalised by their least and
    largest value over the output; where these are equal, every step is as unsure as any other, and all score 1, or
    0 if all are certain.
    """
    return _normalised([row_uncertainty(head, temperature) for head in heads], decay)


def _normalised(uncertainties: Sequence[float], decay: float) -> NDArray[np.float64]:
    raw = np.array(uncertainties, dtype=np.float64)
    if len(raw) == 0:
        return raw
    raw *= np.exp(-np.arange(len(raw)) / decay)
    least, largest = float(raw.min()), float(raw.max())
    if largest == least:
        return np.full(len(raw), 1.0 if largest > 0.0 else 0.0)
    return (raw - least) / (largest - least)


def hotspots(heads: Sequence[Head], rule: SamplingRule, policy: HotspotRule = DEFAULT) -> NDArray[np.bool_]:
    """The steps of a cached output to resample (bool, ``[len(heads)]``); see :func:`select`."""
    return select([row_uncertainty(head, rule.temperature) for head in heads], policy)


def select(uncertainties: Sequence[float], policy: HotspotRule = DEFAULT) -> NDArray[np.bool_]:
    """The steps to resample, given :func:`row_uncertainty` of each (bool, ``[steps]``).

    Steps of score 0 are never chosen, though there be fewer than ``top_k`` others.  Of equal scores the earlier
    step goes first.
    """
    score = _normalised(uncertainties, policy.decay)
    if policy.top_k is None:
        return score > policy.threshold
    chosen = np.zeros(len(score), dtype=np.bool_)
    chosen[np.argsort(-score, kind="stable")[: policy.top_k]] = True
    return chosen & (score > 0.0)


def kl_divergence(
    heads: Sequence[Head], output: Sequence[int], rule: SamplingRule, hot: Sequence[bool] | NDArray[np.bool_]
) -> float:
    """KL(hotspot || exact) in nats of the next sample of a state, given its cached output.

    Hotspot sampling reaches step t if it drew the cached token at every hotspot before, and keeps the cached token
    at each other step, where exact sampling would draw it with probability p; beyond the replay both are the model.
    So the divergence is the sum over kept steps of ``P(reached) * -log p``, exactly; infinite where the rule
    forbids a kept token.  Probabilities of tokens beyond a head, and those of heads of unknown mass, are estimated
    as in :func:`row_uncertainty`.
    """
    divergence, reached = 0.0, 1.0
    for head, token, resampled in zip(heads, output, hot, strict=True):
        probability = _probability(head, rule, token)
        if resampled:
            reached *= probability
        elif reached > 0.0:
            divergence += reached * -math.log(probability) if probability > 0.0 else math.inf
    return divergence


def _mass(head: Head, temperature: float, weights: NDArray[np.float64]) -> float:
    return head.normaliser_bounds(temperature, weights)[1]


def _probability(head: Head, rule: SamplingRule, token: int) -> float:
    """Of a token under the rule, the tail spread evenly; 0 for what the rule cuts off."""
    if len(head.ids) == 0:
        return 1.0 / head.support
    weights = head.weights(rule.temperature)
    mass = _mass(head, rule.temperature, weights)
    left_out = head.support - len(weights)
    tail = max(mass - float(weights.sum()), 0.0)
    spread = np.concatenate([weights, np.full(left_out, tail / left_out if left_out else 0.0)])
    starts = np.cumsum(spread) - spread
    kept = (np.arange(len(spread)) < max(rule.top_k, 1)) & (spread >= rule.min_p)
    if rule.top_p < 1.0:
        kept &= starts <= rule.top_p * mass
    (at,) = np.nonzero(head.ids == token)
    if len(at):
        return float(spread[at[0]] / spread[kept].sum()) if kept[at[0]] else 0.0
    # Some token of the tail: any of them is as likely as the next to be among those that are kept.
    beyond = kept[len(weights) :]
    return float(spread[len(weights) :][beyond].sum() / spread[kept].sum() / left_out) if left_out else 0.0
