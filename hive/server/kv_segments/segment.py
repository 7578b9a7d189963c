"""Segments: runs of tokens, each with one stored encoding that can be placed behind any context.

The keys of an encoding are kept as they were computed, rotated to the original position of its first token (its
*frame*).  To place it elsewhere rotates them once, by the difference; a placement in the frame itself needs no copy.
A common frame at position 0 would cost every encoding a further rotation, which in bfloat16 is an error of 0.2%.
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
    """Identifies an encoding.  Tenants never find each other's encodings, nor do adapters."""

    tenant: str
    adapter: str
    name: str
    """``CONTEXT:DIGEST:EXTRA_KEY`` for a segment that is found by its tokens (see
    :mod:`hive.server.kv_segments.request`), and ``message:ID`` for a message."""


def digest(tokens: Sequence[int]) -> str:
    """Return a name that is unique to a run of tokens."""
    return hashlib.blake2b(array("q", tokens).tobytes(), digest_size=16).hexdigest()


@dataclass(eq=False, slots=True)
class Placement:
    """An encoding with its keys rotated to one position; all requests that need it there share the slots."""

    start: int
    """Position of the first token."""
    slots: torch.Tensor
    """int64 [tokens], on the device of the pool."""
    leases: int = 0
    used: int = 0
    """Clock of the store at the last use."""


@dataclass(eq=False, slots=True)
class HostCopy:
    """A copy in host memory; empty until the engine has made it."""

    kv: Any = None
    """The data, as the engine's code that moves KV represents it."""
    leases: int = 0
    """Number of readers that are about to load the copy; it is kept until then."""


@dataclass(eq=False, slots=True)
class EncodedSegment:
    """One stored encoding."""

    id: int
    """Negative, because the index of evictable leaves uses non-negative ids for the nodes of the radix tree."""
    key: SegmentKey
    tokens: array[int]
    hive: NodeRecord
    """Record of its producer and its uses; named as on the nodes of the radix tree, so that one index holds both."""
    own: Placement
    """The placement in its frame.  Its slots are empty while the encoding is only on the host."""
    elsewhere: dict[int, Placement] = field(default_factory=dict)
    """Other placements, by start position."""
    host: HostCopy | None = None
    dropped: bool = False
    """Whether it was removed from the store; it is freed with its last lease."""

    @property
    def on_device(self) -> bool:
        """Whether the encoding is on the device in its frame."""
        return len(self.own.slots) == len(self.tokens)

    @property
    def leases(self) -> int:
        """Number of requests that read it, at any position."""
        return self.own.leases + sum(placement.leases for placement in self.elsewhere.values())

    def __len__(self) -> int:
        return len(self.tokens)
