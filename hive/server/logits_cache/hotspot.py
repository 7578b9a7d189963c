"""Hotspot sampling (paper, section 6.2): resample only where the model was unsure, keep the cached tokens elsewhere.

A step of a cached output scores high if its distribution has a large entropy and no clear favourite, and if it comes
early (equations 2 to 4; our copy of the paper lost the formulas of the decay and of the normalisation, so both are
defined here).  Steps above a threshold, or the few with the highest scores, are resampled.  The others keep the token
of the cached output.  Replay ends where a resampled token differs from it.

**Approximate.**  Given the cached output, a kept token is certain, although the model would have drawn another one
with probability ``1 - p``: more of the output repeats than under exact (step-wise) sampling.  With p the probability
of a kept token, KL(hotspot || exact) is the sum of ``P(reached) * -log p`` over the kept steps: beyond the replay both
distributions are the model's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head

THRESHOLD = 0.6
"""Normalised score above which a step is resampled (the paper's value)."""

DECAY_STEPS = 500.0
"""Steps over which a score falls by a factor of e (our choice: the length of the paper's outputs, since the paper
favours earlier steps only slightly)."""


@dataclass(frozen=True, slots=True)
class HotspotRule:
    """Which steps of a cached output to resample; :mod:`hive.server.request_tag` has checked the fields."""

    threshold: float = THRESHOLD
    """Resample steps with a normalised score above this, in [0, 1); ignored if ``top_k`` is given."""
    top_k: int | None = None
    """Resample this many steps, those with the highest scores."""
    decay: float = DECAY_STEPS
    """Steps over which a score falls by a factor of e; infinite for no decay."""


def row_uncertainty(head: Head, temperature: float) -> float:
    """Return entropy in nats times (1 - probability of the likeliest token), before truncation (equations 2 and 3).

    The mass of the tokens that the head leaves out is spread evenly over them, so the result is an upper bound.  If
    that mass is only bounded, its upper bound counts.  An empty head stands for a row whose likeliest tokens are all
    equal; it counts as uniform.
    """
    if len(head.ids) == 0:
        return math.log(head.support) * (1.0 - 1.0 / head.support)
    weights = head.weights(temperature)
    mass = head.normaliser_bounds(temperature, weights)[1]
    left_out = head.support - len(weights)
    probabilities = weights[weights > 0.0] / mass
    entropy = -float(probabilities @ np.log(probabilities))
    tail = (mass - float(weights.sum())) / mass
    if left_out > 0 and tail > 0.0:
        entropy -= tail * math.log(tail / left_out)
    return entropy * (1.0 - float(probabilities[0]))


def _normalised(uncertainties: Sequence[float], decay: float) -> NDArray[np.float64]:
    raw = np.array(uncertainties, dtype=np.float64)
    if len(raw) == 0:
        return raw
    raw *= np.exp(-np.arange(len(raw)) / decay)
    least, largest = float(raw.min()), float(raw.max())
    if largest == least:
        return np.full(len(raw), 1.0 if largest > 0.0 else 0.0)
    return (raw - least) / (largest - least)


def select(uncertainties: Sequence[float], policy: HotspotRule) -> NDArray[np.bool_]:
    """Return the steps to resample, given :func:`row_uncertainty` of each (bool, ``[steps]``).

    Steps of score 0 are never chosen, even if fewer than ``top_k`` remain.  Ties go to the earlier step.
    """
    score = _normalised(uncertainties, policy.decay)
    if policy.top_k is None:
        return score > policy.threshold
    chosen = np.zeros(len(score), dtype=np.bool_)
    chosen[np.argsort(-score, kind="stable")[: policy.top_k]] = True
    return chosen & (score > 0.0)
