"""Heads as bytes: the memory that a cached token takes.

Token ids take two bytes, or three in vocabularies above 65,536 tokens.  Logits of a bf16 model are kept without loss:
they are sorted, so the steps between successive bf16 numbers take one byte each.  Logits that are not bf16 numbers (a
float32 model, or penalties on top) take four bytes.  A head that holds most of its vocabulary
(``--hive-logits-cache-form full``) is laid out by token id, so that ids take no bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hive.server.logits_cache.head import Head

_HEADER = struct.Struct("<BBHIII")
"""Flags, number of normalisers, number of long steps, tokens, support, and the first logit or the vocabulary size."""
_NORMALISER = struct.Struct("<fd")
"""Temperature and sum."""
_WIDE = 1
"""Flag: ids have a third byte."""
_FLOAT32 = 2
_DENSE = 4
_LONG_STEP = np.dtype([("place", "<u2"), ("step", "<u2")])
_ESCAPE = 255
_MAX_STEPS = 2**16
"""Longer heads are not coded as steps: the position of a long step would not fit its field."""


def pack(head: Head) -> bytes:
    """Return the head as bytes; :func:`unpack` inverts this exactly."""
    size = len(head.ids)
    bits = np.ascontiguousarray(head.logits, dtype=np.float32).view(np.uint32)
    as_bf16 = not (bits & 0xFFFF).any()
    normalisers = b"".join(_NORMALISER.pack(*pair) for pair in head.normalisers.items())
    last = int(head.ids.max()) if size else 0
    if size > _MAX_STEPS or 2 * size > last + 1 > 4096:
        row = np.full(last + 1, -np.inf, dtype=np.float32)
        row[head.ids] = head.logits
        flags = _DENSE | (0 if as_bf16 else _FLOAT32)
        header = _HEADER.pack(flags, len(head.normalisers), 0, size, head.support, last + 1)
        values = (row.view(np.uint32) >> 16).astype("<u2") if as_bf16 else row.astype("<f4")
        return header + normalisers + values.tobytes()

    ids = head.ids.astype("<u4")
    wide = last >= 2**16
    flags = (_WIDE if wide else 0) | (0 if as_bf16 else _FLOAT32)
    parts = [b"", normalisers, ids.astype("<u2").tobytes()]
    if wide:
        parts.append((ids >> 16).astype("<u1").tobytes())
    first = long_steps = 0
    if not as_bf16:
        parts.append(head.logits.astype("<f4").tobytes())
    elif size:
        ordinals = _ordinals((bits >> 16).astype(np.uint16))
        first = int(ordinals[0])
        steps = np.zeros(size, np.int64)
        steps[1:] = ordinals[:-1] - ordinals[1:]
        (places,) = np.nonzero(steps >= _ESCAPE)
        if len(places):
            long_steps = len(places)
            exceptions = np.empty(long_steps, _LONG_STEP)
            exceptions["place"], exceptions["step"] = places, steps[places]
            steps[places] = 0
            parts.append(exceptions.tobytes())
        parts.append(steps.astype("<u1").tobytes())
    parts[0] = _HEADER.pack(flags, len(head.normalisers), long_steps, size, head.support, first)
    return b"".join(parts)


def pack_rows(
    ids: NDArray[np.int32], logits: NDArray[np.float32], scalars: Sequence[tuple[int, int, float, float]]
) -> list[bytes | None]:
    """Pack many heads at once, with a fifth of the work that :func:`pack` needs per row.

    ``ids`` and ``logits`` are ``[batch, k]``; ``scalars`` are each row's size, support, temperature and normaliser.
    The result of an empty head is None.
    """
    sizes = np.array([size for size, *_ in scalars])
    # A sure model's heads are much shorter than k.
    longest = max(1, int(sizes.max(initial=0)))
    ids, logits = ids[:, :longest], np.ascontiguousarray(logits[:, :longest])
    used = np.arange(longest) < sizes[:, None]
    bits = logits.view(np.uint32)
    ordinals = _ordinals((bits >> 16).astype(np.uint16))
    steps = np.zeros_like(ordinals)
    steps[:, 1:] = ordinals[:, :-1] - ordinals[:, 1:]
    special = (used & ((steps >= _ESCAPE) | ((bits & 0xFFFF) != 0))).any(axis=1).tolist()
    highest = np.where(used, ids, 0).max(axis=1).tolist()
    firsts = ordinals[:, 0].tolist()
    low, high, short = ids.astype("<u2"), (ids >> 16).astype("<u1"), steps.astype("<u1")
    packed: list[bytes | None] = []
    for i, (size, support, temperature, normaliser) in enumerate(scalars):
        if size == 0:
            packed.append(None)
        elif special[i] or 2 * size > highest[i] + 1:
            packed.append(pack(Head(ids[i, :size], logits[i, :size], support, {temperature: normaliser})))
        else:
            wide = highest[i] >= 2**16
            header = _HEADER.pack(_WIDE if wide else 0, 1, 0, size, support, firsts[i])
            parts = [header, _NORMALISER.pack(temperature, normaliser), low[i, :size].tobytes()]
            if wide:
                parts.append(high[i, :size].tobytes())
            parts.append(short[i, :size].tobytes())
            packed.append(b"".join(parts))
    return packed


def covers(known: bytes, other: bytes) -> bool:
    """Whether ``known`` has at least as many tokens as ``other``, and all its temperatures; compares packed heads."""
    if known == other:
        return True
    (_, count, _, size, *_), (_, other_count, _, other_size, *_) = (
        _HEADER.unpack_from(known),
        _HEADER.unpack_from(other),
    )
    start, width = _HEADER.size, _NORMALISER.size
    temperatures, others = (
        {packed[at : at + 4] for at in range(start, start + width * number, width)}
        for packed, number in ((known, count), (other, other_count))
    )
    return size >= other_size and others <= temperatures


def unpack(packed: bytes) -> Head:
    """Return the head behind the bytes."""
    flags, temperatures, long_steps, size, support, first = _HEADER.unpack_from(packed)
    at = _HEADER.size + _NORMALISER.size * temperatures
    normalisers = dict(_NORMALISER.iter_unpack(packed[_HEADER.size : at]))
    if flags & _DENSE:
        if flags & _FLOAT32:
            row = np.frombuffer(packed, "<f4", first, at)
        else:
            row = (np.frombuffer(packed, "<u2", first, at).astype(np.uint32) << 16).view(np.float32)
        order = np.argsort(-row, kind="stable")[:size]
        return Head(order.astype(np.int32), row[order], support, normalisers)

    ids = np.frombuffer(packed, "<u2", size, at).astype(np.int32)
    at += 2 * size
    if flags & _WIDE:
        ids |= np.frombuffer(packed, "<u1", size, at).astype(np.int32) << 16
        at += size
    if flags & _FLOAT32:
        return Head(ids, np.frombuffer(packed, "<f4", size, at), support, normalisers)
    exceptions = np.frombuffer(packed, _LONG_STEP, long_steps, at)
    at += _LONG_STEP.itemsize * long_steps
    steps = np.frombuffer(packed, "<u1", size, at)
    if long_steps:
        steps = steps.astype(np.int64)
        steps[exceptions["place"]] = exceptions["step"]
    return Head(ids, _logits(first - steps.cumsum(dtype=np.int64)), support, normalisers)


def _ordinals(bf16: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Map bit patterns of bf16 numbers to integers in the order of the numbers."""
    bits = bf16.astype(np.int64)
    return np.where(bits & 0x8000, 0xFFFF - bits, bits | 0x8000)


def _logits(ordinals: NDArray[np.int64]) -> NDArray[np.float32]:
    """The inverse of :func:`_ordinals` for descending numbers, as float32."""
    if len(ordinals) and ordinals[-1] & 0x8000:
        # The usual case: no number is negative.
        return ((ordinals & 0x7FFF).astype(np.uint32) << 16).view(np.float32)
    bits = np.where(ordinals & 0x8000, ordinals & 0x7FFF, 0xFFFF - ordinals)
    return (bits.astype(np.uint32) << 16).view(np.float32)
