"""One Triton kernel that copies KV from slot to slot over all tokens and layers, and rotates the keys.

Does what :meth:`hive.server.kv_segments.slots.KvSlots.copy` does with some ten torch operations for each layer.
"""

# Triton kernels are not Python: their parameters have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from hive.server.kv_segments.rotation import Rope

_ALIGNMENT = 16
"""Bytes that one thread copies at a time."""


@triton.jit
def _row(pointers, layer, slot, stride, like):
    """Return the address of a slot in a layer; ``like`` is any tensor of the dtype."""
    return tl.multiple_of(tl.load(pointers + layer).to(like.dtype), 16) + slot * stride


@triton.jit(do_not_specialize=["shift"])
def _copy(
    key_pointers, value_pointers, key_stride, key_head_stride, value_stride, value_head_stride, sources, targets,
    shifts, shift, frequencies, like, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    HALF: tl.constexpr, SHIFT_OF_EACH: tl.constexpr, INTERLEAVED: tl.constexpr, ELSEWHERE: tl.constexpr,
    PADDED_HEADS: tl.constexpr, PADDED_HALF: tl.constexpr, PADDED_REST: tl.constexpr, PADDED_VALUE: tl.constexpr,
):  # fmt: skip
    """Copy one token in one layer."""
    token, layer = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = tl.load(sources + token).to(tl.int64)
    target = tl.load(targets + token).to(tl.int64)
    delta = tl.load(shifts + token).to(tl.int64) if SHIFT_OF_EACH else shift.to(tl.int64)

    # Subtract whole turns from the angle in float64; the rest is at most pi, for which float32 is enough.
    pairs = tl.arange(0, PADDED_HALF)
    turns = delta.to(tl.float64) * tl.load(frequencies + pairs, mask=pairs < HALF, other=0.0)
    turns = turns * 0.15915494309189535
    angles = ((turns - tl.floor(turns + 0.5)) * 6.283185307179586).to(tl.float32)
    cos, sin = tl.cos(angles)[None, :], tl.sin(angles)[None, :]

    heads = tl.arange(0, PADDED_HEADS)[:, None]
    from_keys = _row(key_pointers, layer, source, key_stride, like) + heads * key_head_stride
    to_keys = _row(key_pointers, layer, target, key_stride, like) + heads * key_head_stride
    if INTERLEAVED:
        at_first, at_second = 2 * pairs[None, :], 2 * pairs[None, :] + 1
    else:
        at_first, at_second = pairs[None, :], pairs[None, :] + HALF
    turned = (heads < HEADS) & (pairs[None, :] < HALF)
    first = tl.load(from_keys + at_first, mask=turned)
    second = tl.load(from_keys + at_second, mask=turned)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    new_first = (wide_first * cos - wide_second * sin).to(first.dtype)
    new_second = (wide_second * cos + wide_first * sin).to(first.dtype)
    # Copies in place must read everything before anything is written.
    tl.debug_barrier()
    tl.store(to_keys + at_first, tl.where(delta == 0, first, new_first), mask=turned)
    tl.store(to_keys + at_second, tl.where(delta == 0, second, new_second), mask=turned)

    if (2 * HALF < KEY_DIM) & ELSEWHERE:
        rest_at = 2 * HALF + tl.arange(0, PADDED_REST)[None, :]
        inside = (heads < HEADS) & (rest_at < KEY_DIM)
        tl.store(to_keys + rest_at, tl.load(from_keys + rest_at, mask=inside), mask=inside)
    if ELSEWHERE:
        dims = tl.arange(0, PADDED_VALUE)[None, :]
        inside = (heads < HEADS) & (dims < VALUE_DIM)
        from_values = _row(value_pointers, layer, source, value_stride, like) + heads * value_head_stride
        to_values = _row(value_pointers, layer, target, value_stride, like) + heads * value_head_stride
        tl.store(to_values + dims, tl.load(from_values + dims, mask=inside), mask=inside)


class LayerCopy:
    """Implements :meth:`hive.server.kv_segments.slots.KvSlots.copy` for pools that :meth:`fits` accepts."""

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], rope: Rope) -> None:
        self._keys, self._values, self._rope = keys, values, rope
        self._key_pointers = _pointers(keys)
        self._value_pointers = _pointers(values)

    @staticmethod
    def fits(keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> bool:
        """Whether all layers have the same strides and aligned starts."""
        return all(
            layer.stride() == layers[0].stride()
            and layer.stride(2) == 1
            and layer.data_ptr() % _ALIGNMENT == 0
            for layers in (keys, values)
            for layer in layers
        )

    def __call__(self, source: torch.Tensor, target: torch.Tensor, delta: torch.Tensor | int) -> None:
        elsewhere = source is not target
        source, target = source.contiguous(), target.contiguous()
        keys, values, half = self._keys[0], self._values[0], self._rope.inverse_frequencies.numel()
        shifts, shift = (delta.contiguous(), 0) if isinstance(delta, torch.Tensor) else (None, delta)
        _copy[(target.numel(), len(self._keys))](
            self._key_pointers, self._value_pointers, keys.stride(0), keys.stride(1), values.stride(0),
            values.stride(1), source, target, target if shifts is None else shifts, shift,
            self._rope.inverse_frequencies, keys, keys.shape[1], keys.shape[2], values.shape[2], half,
            shifts is not None, self._rope.interleaved, elsewhere, triton.next_power_of_2(keys.shape[1]),
            triton.next_power_of_2(half), triton.next_power_of_2(max(1, keys.shape[2] - 2 * half)),
            triton.next_power_of_2(values.shape[2]),
        )  # fmt: skip


def _pointers(layers: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.int64, device=layers[0].device)
