"""Draws from what earlier samples left of a distribution, of which often only the head is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head
from hive.server.logits_cache.sampling import SamplingRule, kept_in_head

ROUNDING = 1e-12
"""What is left over after subtracting probabilities from a sum is taken for a rounding error up to here."""


class Drawn(NamedTuple):
    """A token drawn from what earlier samples left; ``sample.advance(*drawn)`` takes it."""

    token: int
    probability: float
    """Under the rule, as if nothing had been used up: in (0, 1]."""
    untaken: float
    """Probability under the rule of all tokens that neither this nor an earlier sample took here."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The part of a rule's kept set that a head knows."""

    weights: NDArray[np.float64]
    """Of the kept tokens in the head, the row's first token's being 1."""
    mass: float
    """Sum of the weights of the whole kept set."""
    whole: bool
    """Whether the kept set ends inside the head."""


def _keep(head: Head, rule: SamplingRule, at: NDArray[np.intp], known: NDArray[np.float64]) -> _Kept | None:
    """What the rule keeps of a row; None if the head does not tell how much that is.

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
        # Nobody summed this row at this temperature, or the cut lies in the tail; but the probability of a token
        # that was taken here tells the sum.
        mass = float(weights[at[0]] / known[0])
        if cumulative[-1] <= mass <= high:
            return _Kept(weights, mass, False)
    return None


def draw(head: Head, rule: SamplingRule, taken: Mapping[int, float], u: float) -> Drawn | None:
    """The token that ``u`` in [0, 1) selects from those of the row behind ``head`` that nobody took, in the sampler's
    order; None when the head does not decide it, or not the token's probability.

    ``taken`` holds the probabilities of the others under the rule.  Every answer is the one the whole row would give.
    A complete head always answers.  Where all tokens were taken, the draw is from all of them.
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
        # Tokens beyond the head: all their probability is known, and that of those that were taken. A recorded sum
        # may be off by more than rounding; where no token is left, no rest is believed.
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
    """The index that ``u`` in [0, 1) selects by inverse CDF, with weights of which the bounds are known (float64,
    ``[choices]``, not all of ``most`` zero); None where the bounds leave it open.

    With C the sum of the weights up to a choice and T of all, the choice is selected where C > u T and the one before
    it has not C > u T.  C - u T grows with each weight up to the choice and falls with each one behind it, so that its
    extremes are at the bounds.
    """
    cumulative = np.cumsum(most)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    if index == len(most):
        index = int(np.flatnonzero(most)[-1])
    if (least < most).any():
        # A margin for rounding: what is certain here must come out in the end.
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
