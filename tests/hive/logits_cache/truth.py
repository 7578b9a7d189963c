"""What the sampler's tests compare with: a rule's distribution without any of the shortcuts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head
from hive.server.logits_cache.sampling import SamplingRule, draw_live


def whole_head(row: NDArray[np.float32], temperature: float) -> Head:
    """The head of all finite entries of a row (float32, ``[vocabulary]``)."""
    (ids,) = np.nonzero(row > -np.inf)
    weights = np.exp((row[ids].astype(np.float64) - float(row.max())) / temperature)
    return Head.select(ids, row[ids], len(ids), {temperature: float(weights.sum())})


def draw_row(row: NDArray[np.float32], rule: SamplingRule, u: float, head_size: int) -> int:
    """The token that the live sampler draws from a row with ``u``, if heads have ``head_size`` tokens."""
    whole = whole_head(row, rule.temperature)
    head = Head.select(whole.ids[:head_size], whole.logits[:head_size], whole.support, whole.normalisers)
    return draw_live(head, lambda: row, rule, u)


def expected(row: NDArray[np.float32], rule: SamplingRule) -> NDArray[np.float64]:
    """The distribution a rule asks for, written down the slow way: SGLang's joint order of truncations."""
    probabilities = np.exp((row.astype(np.float64) - float(row.max())) / rule.temperature)
    probabilities /= probabilities.sum()
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    kept, before = [], 0.0
    for rank, i in enumerate(order):
        likely = probabilities[i] >= rule.min_p * probabilities[order[0]]
        if rank < rule.top_k and before <= rule.top_p and likely:
            kept.append(i)
        before += probabilities[i]
    result = np.zeros(len(row))
    result[kept] = probabilities[kept] / probabilities[kept].sum()
    return result
