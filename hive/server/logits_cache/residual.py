"""Draws from what earlier samples left of a distribution, when often only its head is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head
from hive.server.logits_cache.sampling import SamplingRule, kept_in_head

ROUNDING = 1e-12
"""A remainder up to here, after subtracting probabilities from a sum, is taken for a rounding error."""


class Drawn(NamedTuple):
    """A token drawn from what earlier samples left; ``sample.advance(*drawn)`` appends it."""

    token: int
    probability: float
    """Under the rule and without exclusions, in (0, 1]."""
    untaken: float
    """Probability under the rule of all tokens that neither this nor an earlier sample took here."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The part of the rule's kept tokens that a head knows."""

    weights: NDArray[np.float64]
    """Weights of the kept tokens in the head; the row's first token has weight 1."""
    mass: float
    """Sum of the weights of all kept tokens."""
    whole: bool
    """Whether all kept tokens are in the head."""


def _keep(head: Head, rule: SamplingRule, at: NDArray[np.intp], known: NDArray[np.float64]) -> _Kept | None:
    """Return which tokens of a row the rule keeps; None if the head does not determine their total mass.

    ``known`` are the probabilities of the head's tokens at the indices ``at``.
    """
    weights = head.weights(rule.temperature)
    cumulative = np.cumsum(weights)
    low, high = head.normaliser_bounds(rule.temperature, weights)
    sizes, inside = zip(
        *(kept_in_head(head, weights, cumulative, rule, normaliser) for normaliser in (low, high)),
        strict=True,
    )
    if all(inside) and sizes[0] == sizes[1]:
        return _Kept(weights[: sizes[0]], float(cumulative[sizes[0] - 1]), True)
    if any(inside):
        return None
    if rule.top_k >= head.support and not rule.truncates and low == high:
        return _Kept(weights, low, False)
    if len(at):
        # The row's sum at this temperature is unknown, or the cut lies in the tail; but the known probability of a
        # token that was taken here determines the sum.
        mass = float(weights[at[0]] / known[0])
        if cumulative[-1] <= mass <= high:
            return _Kept(weights, mass, False)
    return None


def draw(head: Head, rule: SamplingRule, taken: Mapping[int, float], u: float) -> Drawn | None:
    """Return the token that ``u`` in [0, 1) selects, in the sampler's order, among those that no sample took.

    ``taken`` maps the tokens that were taken to their probabilities under the rule.  Every answer is the one that the
    whole row would give.  Returns None if the head does not determine the token or its probability; a complete head
    always does.  If all tokens were taken, the draw is from all of them.
    """
    if len(head.ids) == 0:
        return None
    tokens = np.fromiter(taken, dtype=np.int32, count=len(taken))
    probabilities = np.fromiter(taken.values(), dtype=np.float64, count=len(taken))
    at, which = _matches(head.ids, tokens)
    kept = _keep(head, rule, at, probabilities[which])
    if kept is None:
        return None
    size = len(kept.weights)
    at, which = at[at < size], which[at < size]
    untaken = kept.weights.copy()
    untaken[at] = 0.0
    tail = 0.0
    if not kept.whole:
        # The total probability of the tokens beyond the head is known, and so is that of the taken ones among them.
        # A recorded sum may be off by more than rounding; if no token is left there, any rest is an error.
        probabilities[which] = 0.0
        rest = kept.mass * (1.0 - float(probabilities.sum())) - float(kept.weights.sum())
        others = head.support - size - (len(taken) - len(which))
        tail = rest if rest > ROUNDING * kept.mass and others > 0 else 0.0
    weights, cumulative = untaken, np.cumsum(untaken)
    total = float(cumulative[-1]) + tail
    if total == 0.0 and kept.whole:
        weights, cumulative, total = kept.weights, np.cumsum(kept.weights), kept.mass
    index = int(np.searchsorted(cumulative, u * total, side="right"))
    if index == size:
        if not kept.whole:
            return None
        index = int(np.flatnonzero(weights)[-1])
    untaken[index] = 0.0
    return Drawn(
        int(head.ids[index]),
        float(kept.weights[index]) / kept.mass,
        min((float(untaken.sum()) + tail) / kept.mass, 1.0),
    )


def select(least: NDArray[np.float64], most: NDArray[np.float64], u: float) -> int | None:
    """Return the index that ``u`` in [0, 1) selects by inverse CDF; None if the bounds on the weights leave it open.

    ``least`` and ``most`` bound the weights (float64, ``[choices]``); ``most`` must not be all zero.

    Let C be the sum of the weights up to a choice and T the sum of all.  The choice is selected if C > u T, unless that
    holds for the choice before it.  C - u T grows with each weight up to the choice and falls with each weight behind
    it, so its extremes are at the bounds.
    """
    cumulative = np.cumsum(most)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    if index == len(most):
        index = int(np.flatnonzero(most)[-1])
    if (least < most).any():
        # A margin for rounding: a decision made now must agree with the one that the final weights would give.
        margin = ROUNDING * float(cumulative[-1])
        if (1.0 - u) * least[: index + 1].sum() - u * most[index + 1 :].sum() <= margin:
            return None
        if index and (1.0 - u) * most[:index].sum() - u * least[index:].sum() > -margin:
            return None
    return index


def _matches(ids: NDArray[np.int32], tokens: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices into two arrays without duplicates where they hold the same value."""
    if len(tokens) == 0:
        nowhere = np.zeros(0, dtype=np.intp)
        return nowhere, nowhere
    order = tokens.argsort()
    place = tokens[order].searchsorted(ids)
    place[place == len(tokens)] = 0
    candidates = order[place]
    (at,) = np.nonzero(tokens[candidates] == ids)
    return at, candidates[at]
