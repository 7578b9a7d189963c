"""Copies of KV by slot: within an engine's pool, to the host and back, with keys rotated to other positions.

A pool has, for each layer, a tensor of keys and one of values; a token has the same slot in all of them.  Slots are
tensors on the pool's device and are never read by the host, so nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hive.server.kv_segments.rotation import Rope

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class HostKv:
    """KV of n tokens on the host; in pinned memory if the pool is on a GPU."""

    keys: torch.Tensor
    """``[layers, n, kv_heads, head_dim]``, as are ``values``."""
    values: torch.Tensor
    written: torch.cuda.Event | None = None
    """Recorded after the copy by a GPU; None if the data is already there.  :meth:`KvSlots.write` waits for it."""


class KvSlots:
    """The KV of an engine's pool, accessed in place.

    Keys and values have one tensor for each layer, ``[slots, kv_heads, head_dim]``, all of one dtype (float32,
    bfloat16 or float16) on one device; values may have a different head_dim.

    Raises:
        ValueError: for other tensors.
    """

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], rope: Rope) -> None:
        _check(keys, values, rope)
        self.keys = tuple(keys)
        self.values = tuple(values)
        self.device = keys[0].device
        self.rope = rope.to(self.device)
        self._copy_of_device = self._find_kernel()

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, in all layers."""
        return sum(layer[0].nbytes for layer in (*self.keys, *self.values))

    def copy(self, source: torch.Tensor, target: torch.Tensor, delta: torch.Tensor | int) -> None:
        """Copy n tokens from slots to other slots (int64, ``[n]``), with keys rotated by ``delta`` positions
        (integers, ``[n]``, or one for all).

        A slot that is both source and target of a token is changed in place.  A source may occur several times.  But
        if a slot is the source of one token and the target of another, its contents are undefined afterwards.  Keys
        with a delta of 0 keep their bits.
        """
        if target.numel() == 0:
            return
        if self._copy_of_device is not None:
            self._copy_of_device(source, target, delta)
            return
        rotation = self.rope.rotation(delta)
        for keys in self.keys:
            keys.index_copy_(0, target, rotation.apply(keys.index_select(0, source)))
        if source is not target:
            for values in self.values:
                values.index_copy_(0, target, values.index_select(0, source))

    def read(self, slots: torch.Tensor) -> HostKv:
        """Start to copy the KV of n slots (int64, ``[n]``) to the host, keys unrotated."""
        keys, values = self._gather(self.keys, slots), self._gather(self.values, slots)
        if self.device.type != "cuda":
            return HostKv(keys, values)
        # `.to("cpu")` would copy to memory that is not pinned, and wait.
        host = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in (keys, values)]
        for here, there in zip(host, (keys, values), strict=True):
            here.copy_(there, non_blocking=True)
        written = torch.cuda.Event()  # type: ignore[no-untyped-call]
        written.record(torch.cuda.current_stream(self.device))
        return HostKv(host[0], host[1], written)

    def write(self, host: HostKv, target: torch.Tensor, delta: torch.Tensor | int) -> None:
        """Copy n tokens from the host to distinct slots (int64, ``[n]``), with keys rotated as by :meth:`copy`."""
        if host.written is not None:
            torch.cuda.current_stream(self.device).wait_event(host.written)
        for layers, tokens in ((self.keys, host.keys), (self.values, host.values)):
            there = tokens.to(self.device, non_blocking=True)
            for layer, rows in zip(layers, there, strict=True):
                layer.index_copy_(0, target, rows)
        if isinstance(delta, torch.Tensor) or delta != 0:
            self.copy(target, target, delta)

    def _gather(self, layers: Sequence[torch.Tensor], slots: torch.Tensor) -> torch.Tensor:
        gathered = torch.empty(
            (len(layers), slots.numel(), *layers[0].shape[1:]), dtype=layers[0].dtype, device=self.device
        )
        for layer, rows in zip(layers, gathered, strict=True):
            torch.index_select(layer, 0, slots, out=rows)
        return gathered

    def _find_kernel(self) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor | int], None] | None:
        """Return a kernel that copies all layers with one launch; None if the pool's layout does not allow it."""
        if self.device.type != "cuda":
            return None
        from hive.server.kv_segments.triton_slots import LayerCopy

        if not LayerCopy.fits(self.keys, self.values):
            return None
        return LayerCopy(self.keys, self.values, self.rope)


def _check(keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], rope: Rope) -> None:
    if not keys or len(keys) != len(values):
        raise ValueError(
            f"There must be as many layers of keys as of values, got {len(keys)} and {len(values)}."
        )
    for tensors in (keys, values):
        first = tensors[0]
        if first.dim() != 3 or any(tensor.shape != first.shape for tensor in tensors):
            raise ValueError("Keys and values must be [slots, kv_heads, head_dim], and equal in all layers.")
    if keys[0].shape[:2] != values[0].shape[:2]:
        raise ValueError("Keys and values must have the same numbers of slots and heads.")
    if len({(tensor.dtype, tensor.device) for tensor in (*keys, *values)}) != 1:
        raise ValueError("Keys and values must be of one dtype, on one device.")
    if keys[0].dtype not in DTYPES:
        raise ValueError(f"KV of {keys[0].dtype} cannot be moved to other positions; supported are {DTYPES}.")
    if keys[0].shape[2] != rope.head_dim:
        raise ValueError(
            f"Keys have heads of {keys[0].shape[2]} dimensions, but RoPE expects {rope.head_dim}."
        )
