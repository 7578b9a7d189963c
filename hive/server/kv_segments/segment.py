"""What a segment is: a run of tokens, and one encoding of it that can be placed behind any context.

The keys of an encoding are kept as they were computed, rotated to the position at which its first token stood (its
*frame*).  Placing it elsewhere rotates them once, by the difference; a placement in the frame itself needs no copy.
A frame at position 0 for all would cost every encoding one rotation more, which in bfloat16 is an error of 0.2%.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hive.server.eviction.node import NodeRecord


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """What an encoding is found by.  Two tenants, and two adapters, never find each other's."""

    tenant: str
    adapter: str
    name: str
    """``CONTEXT:DIGEST:EXTRA_KEY`` for what is found by its tokens (see :mod:`hive.server.kv_segments.request`), and
    ``message:ID`` for a message."""


def digest(tokens: Sequence[int]) -> str:
    """A name for a run of tokens that no other one has."""
    return hashlib.blake2b(array("q", tokens).tobytes(), digest_size=16).hexdigest()


@dataclass(eq=False, slots=True)
class Placement:
    """An encoding with its keys rotated to a position; requests that want it there share the slots."""

    start: int
    """Position of the first token."""
    slots: torch.Tensor
    """int64 [tokens], on the device of the pool."""
    leases: int = 0
    used: int = 0
    """Clock of the store at the last use."""


@dataclass(eq=False, slots=True)
class HostCopy:
    """A copy in host memory; a place for one until the engine has made it."""

    kv: Any = None
    """Whatever the mover of KV keeps."""
    leases: int = 0
    """Those who are about to load it; it stays meanwhile."""


@dataclass(eq=False, slots=True)
class EncodedSegment:
    """One stored encoding."""

    id: int
    """Negative: in the index of evictable leaves, nodes of the radix tree have the others."""
    key: SegmentKey
    tokens: array[int]
    hive: NodeRecord
    """Whose it is and how it was used, under the name that nodes of the tree have it by."""
    own: Placement
    """In its frame.  Its slots are empty while the encoding is on the host alone."""
    elsewhere: dict[int, Placement] = field(default_factory=dict)
    """By start position."""
    host: HostCopy | None = None
    dropped: bool = False
    """Nobody finds it any more: it goes with its last lease."""

    @property
    def on_device(self) -> bool:
        """Whether the encoding is on the device, in its frame."""
        return len(self.own.slots) == len(self.tokens)

    @property
    def leases(self) -> int:
        """Requests that read it, at whatever position."""
        return self.own.leases + sum(placement.leases for placement in self.elsewhere.values())

    def __len__(self) -> int:
        return len(self.tokens)
