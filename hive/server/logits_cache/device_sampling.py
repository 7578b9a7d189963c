"""The sampler on an accelerator: draws whole batches without waiting for the device.

Order, weights, truncations and random numbers are those of :mod:`hive.server.logits_cache.sampling`; the tail's
weights are float32, and sums are added up in another order.  So inside the head, where replay draws too, a draw can
differ from replay's only if the uniform number lies within about 1e-15 of the boundary between two tokens.

Nothing here sorts a whole row.  The head is selected by top-k (FlashInfer's if it is installed).  A draw beyond it is
found in two steps: first among the sums of blocks of the tail, then inside one block.  On CUDA two Triton kernels do
this (:mod:`hive.server.logits_cache.triton_sampling`).  The torch operations below are their reference, and handle
what the kernels do not: whole rows as heads, and samples without replacement.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self

import torch

from hive.server.logits_cache.head import MIN_PROBABILITY, MIN_TOKENS

LARGEST_KERNEL_HEAD = 1024
"""Largest head that the kernels can sort."""

CHUNK = 256
"""Rows that are drawn together: each temporarily takes some 16 bytes per vocabulary entry."""

BLOCK = 512
"""Tokens of the tail per partial sum."""

_ROUNDING = 1.0 - 2.0**-40
"""Keeps a target below the sum that it was scaled by, despite rounding."""


@dataclass(frozen=True, slots=True)
class Truncations:
    """Rules that may cut the tail of some row of the batch.  The host knows them, so that unused ones cost nothing."""

    top_k: bool = True
    """Whether some ``top_k`` is larger than the head; one that ends inside the head always works."""
    top_p: bool = True
    min_p: bool = True

    @classmethod
    def of(cls, info: Any) -> Self:
        """Return those of SGLang's ``SamplingBatchInfo``."""
        return cls(info.need_top_k_sampling, info.need_top_p_sampling, info.need_min_p_sampling)


def rules_of(info: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the rules of SGLang's ``SamplingBatchInfo``: ``[batch]`` each, in the order of the fields of
    :class:`hive.server.logits_cache.sampling.SamplingRule`."""
    return info.temperatures.view(-1), info.top_ks, info.top_ps, info.min_ps


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Drawn tokens (int32, ``[batch]``) and the heads they were drawn from, in few tensors so that few copies suffice.

    ``heads`` (int32, ``[batch, 2, k]``) are each row's most likely tokens in sampling order: their ids, and the bits
    of their float32 logits.  ``scalars`` (float64, ``[batch, 5]``) are, for each row: the number of tokens to record;
    support, temperature and normaliser as in :class:`hive.server.logits_cache.head.Head`; and the probability of the
    drawn token under its rule.
    """

    tokens: torch.Tensor
    heads: torch.Tensor
    scalars: torch.Tensor


def draw_rows(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    head_size: int,
    min_probability: float = MIN_PROBABILITY,
    truncations: Truncations = Truncations(),
    remaining: torch.Tensor | None = None,
) -> DrawnRows:
    """Draw one token per row.

    Rows without anything to draw from (overflow to NaN, or every token forbidden) give an arbitrary token and do not
    raise.  So does greedy sampling from more equal maxima than a head holds.

    Args:
        logits: float, ``[batch, vocabulary]``; all other tensors but ``remaining`` are ``[batch]``.
        temperatures: of the rule of each row.
        top_ks: likewise.
        top_ps: likewise.
        min_ps: likewise.
        seeds: int64.
        positions: index of the last token before the drawn one.
        head_size: maximum number of tokens of a head.
        min_probability: tokens less likely than this are not recorded.
        truncations: rules that may cut a tail.
        remaining: float32, ``[batch, vocabulary]``; multiplies the probabilities after truncation, which excludes what
            samples without replacement used up.
    """
    if logits.is_cuda and remaining is None and head_size <= LARGEST_KERNEL_HEAD and _installed("triton"):
        from hive.server.logits_cache import triton_sampling

        values, ids = _top(logits, min(head_size, logits.shape[1]))
        rules = (temperatures, top_ks, top_ps, min_ps)
        return DrawnRows(
            *triton_sampling.draw_rows(logits, values, ids, *rules, seeds, positions, min_probability)
        )
    uniforms = uniform_rows(seeds, positions)
    parts = [
        _draw(
            logits[part],
            temperatures[part],
            top_ks[part],
            top_ps[part],
            min_ps[part],
            uniforms[part],
            head_size,
            min_probability,
            truncations,
            None if remaining is None else remaining[part],
        )
        for part in (slice(start, start + CHUNK) for start in range(0, logits.shape[0], CHUNK))
    ]
    if len(parts) == 1:
        return parts[0]
    return DrawnRows(*(torch.cat([getattr(part, item.name) for part in parts]) for item in fields(DrawnRows)))


def _draw(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    uniforms: torch.Tensor,
    head_size: int,
    min_probability: float,
    truncations: Truncations,
    remaining: torch.Tensor | None,
) -> DrawnRows:
    rows = torch.nan_to_num(
        logits.float(), nan=-torch.inf, posinf=torch.finfo(torch.float32).max, neginf=-torch.inf
    )
    values, ids = _in_order(*_top(rows, min(head_size, rows.shape[1])))
    supports = (rows > -torch.inf).sum(dim=-1)
    # Top-k picks arbitrarily among tokens tied with its last one; these count as tail, unless it has all tokens.
    in_head = (values > values[:, -1:]) | (supports <= values.shape[1])[:, None] & (values > -torch.inf)
    sizes = in_head.sum(dim=-1)
    first = values[:, :1]
    heat = temperatures[:, None]

    exponents = (values.double() - first.double()) / heat.double()
    head = torch.where(in_head, torch.exp(exponents), 0.0)
    sums = head.cumsum(dim=-1)
    mass = sums[:, -1:]

    blocks = -(-rows.shape[1] // BLOCK)
    tail = rows.new_zeros(rows.shape[0], blocks * BLOCK)
    torch.exp((rows - first) / heat, out=tail[:, : rows.shape[1]])
    tail.nan_to_num_(nan=0.0)
    whole = tail[:, : rows.shape[1]].clone() if truncations.top_p or truncations.top_k else None
    tail.scatter_(1, ids.long(), torch.where(in_head, 0.0, tail.gather(1, ids.long())))
    normalisers = mass + tail.view(-1, blocks, BLOCK).sum(dim=-1).double().sum(dim=-1, keepdim=True)

    # If every finite token is in the head, there is no tail to cut.
    inside = torch.minimum(supports, top_ks)[:, None] <= sizes[:, None]
    kept = in_head & (torch.arange(values.shape[1], device=values.device) < top_ks[:, None])
    if truncations.top_p:
        limit = torch.where(top_ps[:, None] < 1.0, top_ps.double()[:, None] * normalisers, torch.inf)
        kept &= sums - head <= limit
        inside = inside | (mass > limit)
    if truncations.min_p:
        kept &= head >= min_ps.double()[:, None]
        inside = inside | (in_head & (head < min_ps.double()[:, None])).any(dim=-1, keepdim=True)
        tail = torch.where(tail >= min_ps[:, None], tail, 0.0)
    if whole is not None:
        tail = _cut(tail, whole, top_ks, top_ps)
    tail = torch.where(inside, 0.0, tail)
    last = kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1

    chosen = torch.where(kept, head, 0.0)
    total_kept = chosen.sum(dim=-1, keepdim=True) + tail.double().sum(dim=-1, keepdim=True)
    untouched = tail
    if remaining is not None:
        left, left_of_tail = chosen * remaining.gather(1, ids.long()), tail.clone()
        left_of_tail[:, : rows.shape[1]] *= remaining
        # If nothing is left, any sample repeats an earlier one: draw without exclusions.
        any_left = (left.sum(dim=-1, keepdim=True) + left_of_tail.sum(dim=-1, keepdim=True)) > 0.0
        chosen, tail = torch.where(any_left, left, chosen), torch.where(any_left, left_of_tail, tail)
        sums = chosen.cumsum(dim=-1)
    kept_mass = sums.gather(1, last)
    block_sums = tail.view(-1, blocks, BLOCK).sum(dim=-1).double().cumsum(dim=-1)
    target = uniforms[:, None] * (kept_mass + block_sums[:, -1:])
    index = torch.minimum(torch.searchsorted(sums, target, right=True), last)

    beyond = (target >= kept_mass) & (block_sums[:, -1:] > 0.0)
    tail_token = _draw_tail(tail, block_sums, target - kept_mass)
    tail_weight = untouched.gather(1, tail_token).double()
    token = torch.where(beyond, tail_token, ids.gather(1, index).long())
    weight = torch.where(beyond, tail_weight, head.gather(1, index))
    worth = torch.minimum(sizes, (head >= min_probability * normalisers).sum(dim=-1).clamp(min=MIN_TOKENS))
    columns = (worth, supports, temperatures, normalisers.view(-1), (weight / total_kept).view(-1))
    return DrawnRows(
        token.view(-1).to(torch.int32),
        torch.stack((ids, values.view(torch.int32)), dim=1),
        torch.stack([column.double() for column in columns], dim=1),
    )


def _top(rows: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``size`` largest entries of each row (float) and their indices, in any order."""
    if rows.is_cuda and size < rows.shape[1] and _installed("flashinfer"):
        values, ids = importlib.import_module("flashinfer").top_k(rows, size)
    else:
        values, ids = rows.topk(size, dim=-1, sorted=False)
    return values.float(), ids.to(torch.int32)


def _in_order(values: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return entries (float32, int32) by value, descending, and by id, ascending.

    One sort of integers suffices: floats of either sign compare like integers once the bits of negative ones are
    flipped.  Adding zero makes -0.0 equal to 0.0.
    """
    bits = (values + 0.0).view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys, places = ((ordered << 32) | (0x7FFFFFFF - ids.long())).sort(dim=-1, descending=True)
    return values.gather(1, places) + 0.0, (0x7FFFFFFF - (keys & 0x7FFFFFFF)).to(torch.int32)


def _cut(
    tail: torch.Tensor,
    whole: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
) -> torch.Tensor:
    """Return the tail without what top-k and top-p cut off the ``whole`` weights; ties with the last kept one stay."""
    vocabulary = whole.shape[1]
    ordered = whole.double().sort(dim=-1, descending=True).values
    starts = ordered.cumsum(dim=-1) - ordered
    limit = torch.where(top_ps < 1.0, top_ps.double() * ordered.sum(dim=-1), torch.inf)
    count = (starts <= limit[:, None]).sum(dim=-1).minimum(top_ks).clamp(1, vocabulary)
    keep = whole.double() >= ordered.gather(1, count.long()[:, None] - 1)
    tail[:, :vocabulary] *= keep
    return tail


def _draw_tail(tail: torch.Tensor, block_sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a token drawn by inverse CDF over the tail, by id (int64, ``[batch, 1]``).

    ``block_sums`` (float64, ``[batch, blocks]``) are cumulative.
    """
    target = torch.minimum(target.clamp(min=0.0), block_sums[:, -1:] * _ROUNDING)
    block = torch.searchsorted(block_sums, target, right=True).clamp(max=block_sums.shape[1] - 1)
    upper = block_sums.gather(1, block)
    lower = torch.where(block > 0, block_sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    inner = tail.view(tail.shape[0], -1, BLOCK).gather(1, block[:, :, None].expand(-1, 1, BLOCK)).squeeze(1)
    weights = inner.double()
    sums = weights.cumsum(dim=-1)
    # A block's float32 sum and its float64 sums differ in rounding: rescale from one to the other.
    share = ((target - lower) / (upper - lower)).clamp(0.0, _ROUNDING)
    place = torch.searchsorted(sums, share * sums[:, -1:], right=True).clamp(max=BLOCK - 1)
    return block * BLOCK + place


@cache
def _installed(package: str) -> bool:
    """Whether an optional package is installed; on a GPU, SGLang depends on FlashInfer and Triton."""
    return importlib.util.find_spec(package) is not None


def uniform_rows(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return :func:`hive.server.logits_cache.sampling.uniform` of int64 ``[batch]`` tensors, as float64 ``[batch]``."""
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
