"""Log-probabilities of replayed tokens, in the form in which the engine reports those of generated ones.

As in SGLang they are those of the distribution after temperature and before truncation; they are computed from the
recorded row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hive.server.logits_cache.head import Head

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
