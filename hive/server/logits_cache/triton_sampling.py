"""The device sampler as two Triton kernels: some 0.03 ms for 32 rows of a 152k vocabulary, plus the top-k.

Does what :func:`hive.server.logits_cache.device_sampling.draw_rows` does with a hundred torch operations, whose
launches take too long for a decode step.  Nothing waits for the device, so the kernels can be captured in a CUDA
graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hive.server.logits_cache.head import MIN_TOKENS

BLOCK = 1024
"""Tokens of the tail per partial sum."""

WIDE = 8192
"""Tokens per step of a pass over a whole row."""

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _clean(x):
    """Map NaN and -inf to -inf (forbidden tokens), +inf to the largest number, and -0.0 to 0.0."""
    x = tl.where(x == x, x, float("-inf"))
    return tl.minimum(x, _LARGEST) + 0.0


@triton.jit
def _mix(x):
    """The finaliser of splitmix64."""
    x = (x ^ (x >> 30)) * tl.full((), _MIX_1, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), _MIX_2, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _ordered(x):
    """Map floats to integers in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _tail_sums(
    logits, row_stride, top_values, temperatures, sums, counts, vocabulary, blocks, K: tl.constexpr,
    PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the weight of the tail and the number of allowed tokens in one block of one row."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ranks = tl.arange(0, PADDED)
    top = _clean(tl.load(top_values + row * K + ranks, mask=ranks < K, other=float("-inf")))
    first = tl.max(top, 0)
    last = tl.min(tl.where(ranks < K, top, float("inf")), 0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * row_stride + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
    x = _clean(x)
    allowed = x > float("-inf")
    weights = tl.exp((x - first) / tl.load(temperatures + row))
    tl.store(sums + row * blocks + block, tl.sum(tl.where(allowed & (x <= last), weights, 0.0), 0))
    tl.store(counts + row * blocks + block, tl.sum(allowed.to(tl.int32), 0))


@triton.jit
def _draw(
    logits, row_stride, top_values, top_ids, temperatures, top_ks, top_ps, min_ps, seeds, positions, sums, counts,
    tokens, heads, scalars, min_probability, vocabulary, blocks, K: tl.constexpr, PADDED: tl.constexpr,
    MIN_TOKENS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Draw the token of one row.

    ``scalars`` (float64, ``[batch, 5]``) receives size, support, temperature, normaliser and probability.
    """
    row = tl.program_id(0).to(tl.int64)
    heat = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    min_p = tl.load(min_ps + row)

    # One sort of integers orders by logit, descending, then by id, ascending.
    ranks = tl.arange(0, PADDED)
    present = ranks < K
    found = _clean(tl.load(top_values + row * K + ranks, mask=present, other=float("-inf")))
    places = tl.load(top_ids + row * K + ranks, mask=present, other=0).to(tl.int64)
    keys = (_ordered(found).to(tl.int64) << 32) | (0x7FFFFFFF - places)
    keys = tl.sort(tl.where(present, keys, -0x7FFFFFFFFFFFFFFF), descending=True)
    places = 0x7FFFFFFF - (keys & 0x7FFFFFFF)
    bits = (keys >> 32).to(tl.int32)
    top = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    top = tl.where(present, top, float("-inf"))
    tl.store(heads + row * 2 * K + ranks, places.to(tl.int32), mask=present)
    tl.store(heads + row * 2 * K + K + ranks, top.to(tl.int32, bitcast=True), mask=present)

    first = tl.max(top, 0)
    last = tl.min(tl.where(present, top, float("inf")), 0)
    numbers = tl.arange(0, BLOCKS)
    mine = numbers < blocks
    support = tl.sum(tl.load(counts + row * blocks + numbers, mask=mine, other=0), 0)
    # Top-k picks arbitrarily among tokens tied with its last one; these count as tail, unless it has all tokens.
    in_head = present & (top > float("-inf")) & ((top > last) | (support <= K))
    size = tl.sum(in_head.to(tl.int32), 0)
    weights = tl.where(
        in_head, tl.exp((top.to(tl.float64) - first.to(tl.float64)) / heat.to(tl.float64)), 0.0
    )
    running = tl.cumsum(weights, 0)
    mass = tl.sum(weights, 0)
    block_sums = tl.load(sums + row * blocks + numbers, mask=mine, other=0.0).to(tl.float64)
    block_sums = tl.where(support <= K, 0.0, block_sums)
    normaliser = mass + tl.sum(block_sums, 0)
    worth = tl.sum((in_head & (weights >= min_probability * normaliser)).to(tl.int32), 0)

    limit = tl.where(top_p < 1.0, top_p.to(tl.float64) * normaliser, float("inf"))
    likely = weights >= min_p.to(tl.float64)
    kept = in_head & likely & (ranks < top_k) & (running - weights <= limit)
    count = tl.sum(kept.to(tl.int32), 0)
    kept_mass = tl.sum(tl.where(kept, weights, 0.0), 0)
    cut_off = tl.sum((in_head & (likely == 0)).to(tl.int32), 0)
    inside = (tl.minimum(support, top_k) <= size) | (mass > limit) | (cut_off > 0)

    least = tl.full((), float("-inf"), tl.float32)
    if inside:
        block_sums = tl.zeros_like(block_sums)
    else:
        if (top_p < 1.0) | (top_k < support) | (min_p > 0.0):
            # The cut lies in the tail: bisect for the least kept logit. A token is kept if the tokens above it weigh
            # no more than top-p allows and are fewer than top-k.
            low = tl.full((), -0x7F800001, tl.int64)
            high = _ordered(last).to(tl.int64)
            if (top_p < 1.0) | (top_k < support):
                # Three candidates in each pass over the row: one that is too low raises the lower end, one that is
                # not lowers the upper end.
                while low < high:
                    step = (high - low) >> 2
                    try_1, try_2, try_3 = low + step, low + 2 * step, low + 3 * step
                    mass_1, mass_2, mass_3 = mass, mass, mass
                    count_1, count_2, count_3 = size.to(tl.int64), size.to(tl.int64), size.to(tl.int64)
                    for start in range(0, vocabulary, WIDE):
                        at = start + tl.arange(0, WIDE)
                        x = tl.load(logits + row * row_stride + at, mask=at < vocabulary, other=float("-inf"))
                        x = _clean(x.to(tl.float32))
                        code = tl.where((x <= last) & (x > float("-inf")), _ordered(x).to(tl.int64), low)
                        w = tl.exp((x - first) / heat)
                        mass_1 += tl.sum(tl.where(code > try_1, w, 0.0), 0).to(tl.float64)
                        mass_2 += tl.sum(tl.where(code > try_2, w, 0.0), 0).to(tl.float64)
                        mass_3 += tl.sum(tl.where(code > try_3, w, 0.0), 0).to(tl.float64)
                        count_1 += tl.sum((code > try_1).to(tl.int32), 0)
                        count_2 += tl.sum((code > try_2).to(tl.int32), 0)
                        count_3 += tl.sum((code > try_3).to(tl.int32), 0)
                    if (mass_1 <= limit) & (count_1 < top_k):
                        high = try_1
                    elif (mass_2 <= limit) & (count_2 < top_k):
                        low, high = try_1 + 1, try_2
                    elif (mass_3 <= limit) & (count_3 < top_k):
                        low, high = try_2 + 1, try_3
                    else:
                        low = try_3 + 1
                found_code = high.to(tl.int32)
                least = tl.where(found_code < 0, found_code ^ 0x7FFFFFFF, found_code).to(
                    tl.float32, bitcast=True
                )
            for block in range(blocks):
                at = block * BLOCK + tl.arange(0, BLOCK)
                x = tl.load(logits + row * row_stride + at, mask=at < vocabulary, other=float("-inf"))
                x = _clean(x.to(tl.float32))
                w = tl.exp((x - first) / heat)
                keep = (x <= last) & (x > float("-inf")) & (x >= least) & (w >= min_p)
                block_sum = tl.sum(tl.where(keep, w, 0.0), 0).to(tl.float64)
                block_sums = tl.where(numbers == block, block_sum, block_sums)

    u = _mix(_mix(tl.load(seeds + row).to(tl.uint64, bitcast=True))
             + (tl.load(positions + row).to(tl.int64) + 1).to(tl.uint64, bitcast=True)
             * tl.full((), _GOLDEN, tl.uint64)) >> 11  # fmt: skip
    u = u.to(tl.int64, bitcast=True).to(tl.float64) * 1.1102230246251565e-16
    tail_mass = tl.sum(block_sums, 0)
    total = kept_mass + tail_mass
    target = u * total
    index = tl.minimum(tl.sum((kept & (running <= target)).to(tl.int32), 0), tl.maximum(count, 1) - 1)
    token = tl.sum(tl.where(ranks == index, places, 0), 0)
    weight = tl.sum(tl.where(ranks == index, weights, 0.0), 0)

    if (target >= kept_mass) & (tail_mass > 0.0):
        # Inverse CDF over the tail by id: first among the blocks, then inside one.
        rest = tl.minimum(target - kept_mass, tail_mass * (1.0 - 9.094947017729282e-13))
        upper = tl.cumsum(block_sums, 0)
        block = tl.minimum(tl.sum((mine & (upper <= rest)).to(tl.int32), 0), blocks - 1)
        width = tl.sum(tl.where(numbers == block, block_sums, 0.0), 0)
        lower = tl.sum(tl.where(numbers == block, upper, 0.0), 0) - width
        offsets = tl.arange(0, BLOCK)
        at = block * BLOCK + offsets
        x = tl.load(logits + row * row_stride + at, mask=at < vocabulary, other=float("-inf"))
        x = _clean(x.to(tl.float32))
        w = tl.exp((x - first) / heat)
        keep = (x <= last) & (x > float("-inf")) & (x >= least) & (w >= min_p)
        w = tl.where(keep, w, 0.0).to(tl.float64)
        inner = tl.cumsum(w, 0)
        # A block's sum was rounded to float32: rescale from one to the other.
        share = tl.minimum(tl.maximum((rest - lower) / width, 0.0), 1.0 - 9.094947017729282e-13)
        place = tl.minimum(tl.sum((inner <= share * tl.sum(w, 0)).to(tl.int32), 0), BLOCK - 1)
        token = (block * BLOCK + place).to(tl.int64)
        weight = tl.sum(tl.where(offsets == place, w, 0.0), 0)

    tl.store(tokens + row, token.to(tl.int32))
    tl.store(scalars + row * 5, tl.minimum(size, tl.maximum(worth, MIN_TOKENS)).to(tl.float64))
    tl.store(scalars + row * 5 + 1, support.to(tl.float64))
    tl.store(scalars + row * 5 + 2, heat.to(tl.float64))
    tl.store(scalars + row * 5 + 3, normaliser)
    tl.store(scalars + row * 5 + 4, weight / total)


def draw_rows(
    logits: torch.Tensor,
    top_values: torch.Tensor,
    top_ids: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    min_probability: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw one token per row of ``logits`` (float, ``[batch, vocabulary]``), given its top k (``[batch, k]``, in any
    order); all other tensors are ``[batch]``.

    Returns the fields of :class:`hive.server.logits_cache.device_sampling.DrawnRows`.
    """
    batch, vocabulary = logits.shape
    k = top_values.shape[1]
    blocks = triton.cdiv(vocabulary, BLOCK)
    device = logits.device
    sums = torch.empty((batch, blocks), dtype=torch.float32, device=device)
    counts = torch.empty((batch, blocks), dtype=torch.int32, device=device)
    tokens = torch.empty(batch, dtype=torch.int32, device=device)
    heads = torch.empty((batch, 2, k), dtype=torch.int32, device=device)
    scalars = torch.empty((batch, 5), dtype=torch.float64, device=device)
    padded = triton.next_power_of_2(k)
    _tail_sums[(batch, blocks)](
        logits, logits.stride(0), top_values, temperatures, sums, counts, vocabulary, blocks, k, padded, BLOCK
    )
    _draw[(batch,)](
        logits, logits.stride(0), top_values, top_ids, temperatures, top_ks, top_ps, min_ps, seeds, positions, sums,
        counts, tokens, heads, scalars, min_probability, vocabulary, blocks, k, padded, MIN_TOKENS,
        triton.next_power_of_2(blocks), BLOCK, WIDE, num_warps=8,
    )  # fmt: skip
    return tokens, heads, scalars
