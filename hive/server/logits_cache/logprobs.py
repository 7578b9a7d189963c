"""Log-probabilities of replayed tokens, in the form the engine reports those of generated ones.

They are those of the tempered distribution before truncation, as SGLang's are, computed from the recorded row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hive.server.logits_cache.head import Head

LEAST = float(np.finfo(np.float32).min)
"""What stands for minus infinity, as in the engine."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms for one position."""

    token: float
    top_values: list[float]
    top_ids: list[int]
    chosen_values: list[float]
    """Of the token ids that the request asked for."""


def token_logprobs(
    head: Head, temperature: float, token: int, top: int, chosen: Sequence[int]
) -> TokenLogprobs | None:
    """What a request that asked for ``top`` alternatives and the ``chosen`` ids gets for ``token``; None where the
    head is too short for it, or nobody summed the row at this temperature."""
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
