"""Hotspot sampling (paper, section 6.2): resample only where the model was unsure, keep the cached tokens elsewhere.

A step of a cached output scores high if its distribution has a large entropy and no clear favourite, and if it comes
early (equations 2 to 4; our copy of the paper lost the formulas of the decay and of the normalisation, so both are
defined here).  Steps above a threshold, or the few with the highest scores, are resampled.  The others keep the token
of the cached output.  Replay ends where a resampled token differs from it.

**Approximate.**  Given the cached output, a kept token is certain, although the model would have drawn another one
with probability ``1 - p``: more of the output repeats than under exact (step-wise) sampling.  :func:`kl_divergence`
measures how far the two distributions are apart.
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
"""Normalised score above which a step is resampled (the paper's value)."""

DECAY_STEPS = 500.0
"""Steps over which a score falls by a factor of e (our choice: the length of the paper's outputs, since the paper
favours earlier steps only slightly)."""


@dataclass(frozen=True, slots=True)
class HotspotRule:
    """Which steps of a cached output to resample.

    Raises:
        ValueError: if a field is out of range; the message names it.
    """

    threshold: float = THRESHOLD
    """Resample steps with a normalised score above this, in [0, 1); ignored if ``top_k`` is given."""
    top_k: int | None = None
    """Resample this many steps, those with the highest scores."""
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
    """Return entropy in nats times (1 - probability of the likeliest token), before truncation (equations 2 and 3).

    The mass of the tokens that the head leaves out is spread evenly over them, so the result is an upper bound.  If
    that mass is only bounded, its upper bound counts.  An empty head stands for a row whose likeliest tokens are all
    equal; it counts as uniform.
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
    """Return the importance of each step of a cached output (float64, ``[len(heads)]``), in [0, 1] (equation 4).

    ``heads[t]`` is the distribution that output token t was drawn from.  Scores are normalised by the least and the
    largest value over the output.  If these are equal, all steps score 1, or 0 if all are certain.
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
    """Return the steps of a cached output to resample (bool, ``[len(heads)]``); see :func:`select`."""
    return select([row_uncertainty(head, rule.temperature) for head in heads], policy)


def select(uncertainties: Sequence[float], policy: HotspotRule = DEFAULT) -> NDArray[np.bool_]:
    """Return the steps to resample, given :func:`row_uncertainty` of each (bool, ``[steps]``).

    Steps of score 0 are never chosen, even if fewer than ``top_k`` remain.  Ties go to the earlier step.
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
    """Return KL(hotspot || exact), in nats, of the next sample of a state, given its cached output.

    Hotspot sampling reaches step t if it drew the cached token at every earlier hotspot.  At each other step it keeps
    the cached token, which exact sampling would draw with probability p.  Beyond the replay, both are the model.  So
    the divergence is exactly the sum over kept steps of ``P(reached) * -log p``; it is infinite if the rule forbids a
    kept token.  Probabilities of tokens beyond a head, and of heads of unknown mass, are estimated as in
    :func:`row_uncertainty`.
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
    """Return a token's probability under the rule, with the tail spread evenly; 0 if the rule cuts it off."""
    if len(head.ids) == 0:
        return 1.0 / head.support
    weights = head.weights(rule.temperature)
    mass = _mass(head, rule.temperature, weights)
    left_out = head.support - len(weights)
    tail = max(mass - float(weights.sum()), 0.0)
    spread = np.concatenate([weights, np.full(left_out, tail / left_out if left_out else 0.0)])
    kept = np.arange(len(spread)) < rule.kept(spread, mass)
    (at,) = np.nonzero(head.ids == token)
    if len(at):
        return float(spread[at[0]] / spread[kept].sum()) if kept[at[0]] else 0.0
    # The token lies in the tail: every token of the tail is equally likely to be among the kept ones.
    beyond = kept[len(weights) :]
    return float(spread[len(weights) :][beyond].sum() / spread[kept].sum() / left_out) if left_out else 0.0
