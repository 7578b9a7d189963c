"""The sampler's twin for accelerators: whole batches, torch operations only, no wait for the device.

Orders, weights, truncations and random numbers are those of :mod:`hive.logits_cache.sampling`; sums are added up in
another order, so a draw can differ from replay's only where the uniform number lies within about 1e-15 of the
boundary between two tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CHUNK = 64
"""Rows that are sorted together: each holds some 40 bytes per vocabulary entry for the moment."""


@dataclass(slots=True)
class DrawnRows:
    """Drawn tokens (int32, ``[batch]``) and what they were drawn from.

    ``ids`` (int64) and ``logits`` are the first ``k`` entries of each row in sampling order, ``[batch, k]``;
    ``supports`` (int64) and ``normalisers`` (float64) are ``[batch]``, as in :class:`hive.logits_cache.head.Head`.
    """

    tokens: torch.Tensor
    ids: torch.Tensor
    logits: torch.Tensor
    supports: torch.Tensor
    normalisers: torch.Tensor


def draw_rows(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    head_size: int,
) -> DrawnRows:
    """Draw one token per row of ``logits`` (float, ``[batch, vocabulary]``); all else is ``[batch]``.

    Rows with nothing to draw from (overflow to NaN, or every token forbidden) give a token, and stop nobody.
    """
    parts = [
        _draw(logits[part], temperatures[part], top_ks[part], top_ps[part], min_ps[part], uniforms, head_size)
        for part, uniforms in (
            (
                slice(start, start + CHUNK),
                uniform_rows(seeds[start : start + CHUNK], positions[start : start + CHUNK]),
            )
            for start in range(0, logits.shape[0], CHUNK)
        )
    ]
    if len(parts) == 1:
        return parts[0]
    return DrawnRows(*(torch.cat([getattr(part, name) for part in parts]) for name in DrawnRows.__slots__))


def _draw(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    uniforms: torch.Tensor,
    head_size: int,
) -> DrawnRows:
    clean = torch.nan_to_num(
        logits.float(), nan=-torch.inf, posinf=torch.finfo(torch.float32).max, neginf=-torch.inf
    )
    # A stable sort leaves ties in the order of their ids.
    values, ids = clean.sort(dim=-1, descending=True, stable=True)
    first = values[:, :1]
    exponents = (values.double() - first.double()) / temperatures.double()[:, None]
    weights = torch.exp(torch.nan_to_num(exponents, nan=-torch.inf, neginf=-torch.inf))
    cumulative = weights.cumsum(dim=-1)
    normalisers = cumulative[:, -1]

    ranks = torch.arange(values.shape[1], device=values.device)
    kept = ranks < top_ks[:, None]
    # A rule that is switched off must not cut the tail through rounding of the sums.
    nucleus = cumulative - weights <= (top_ps.double() * normalisers)[:, None]
    kept &= nucleus | (top_ps >= 1.0)[:, None]
    kept &= (weights >= min_ps.double()[:, None]) & (weights > 0)
    last = kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1
    target = uniforms[:, None] * cumulative.gather(1, last)
    index = torch.minimum(torch.searchsorted(cumulative, target, right=True), last)
    size = min(head_size, values.shape[1])
    return DrawnRows(
        tokens=ids.gather(1, index).view(-1).to(torch.int32),
        ids=ids[:, :size].clone(),
        logits=values[:, :size].clone(),
        supports=(values > -torch.inf).sum(dim=-1),
        normalisers=normalisers.clone(),
    )


def uniform_rows(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """:func:`hive.logits_cache.sampling.uniform` for int64 ``[batch]``; float64 ``[batch]``."""
    mixed = _mix(_mix(seeds.to(torch.int64)) + (positions.to(torch.int64) + 1) * _signed(0x9E3779B97F4A7C15))
    return _shifted(mixed, 11).double() * 2.0**-53


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right without the sign: torch has no unsigned 64-bit arithmetic, but its signed one wraps."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(constant: int) -> int:
    return constant - 2**64 if constant >= 2**63 else constant
