"""A request's state in the segment store, attached to a request of the engine."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import torch

from hive.server.kv_segments.correctors import corrector_of
from hive.server.kv_segments.correctors.base import Corrector, PlacedRun
from hive.server.kv_segments.plan import Piece, Run
from hive.server.kv_segments.request import CONTEXTS, Keep, KvRequest
from hive.server.kv_segments.segment import EncodedSegment, Placement, SegmentKey, digest


@dataclass(eq=False, slots=True)
class Lease:
    """The KV that one admitted request uses: placed segments, and slots of its own."""

    begin: int
    """Index of the first token after the exact prefix from the radix tree."""
    pieces: list[Piece[EncodedSegment]]
    """Contiguous, from :attr:`begin` on."""
    readers: list[tuple[EncodedSegment, Placement]]
    """Placements to release."""
    private: torch.Tensor
    """int64: the request's own slots, for tokens that it computes or whose KV could not be shared."""
    spare: torch.Tensor
    """int64: the private slots for tokens that a corrector selects later."""
    indices: torch.Tensor
    """int64 [end - begin]: the slots of all tokens."""
    placed: list[PlacedRun]
    runs: list[Run]
    """Runs to compute, without those that a corrector selects later."""
    waiting: bool = True
    """Whether the runs have yet to be computed."""

    @property
    def end(self) -> int:
        """Index after the last token."""
        return self.pieces[-1].end


@dataclass(eq=False, slots=True)
class KvState:
    """State of a request that uses the segment store, as ``Req.hive.kv``."""

    request: KvRequest
    corrector: Corrector
    tenant: str
    adapter: str
    tokens: array[int]
    """Prompt tokens."""
    keys: dict[str, SegmentKey] = field(default_factory=dict)
    """Keys of its spans and of the KV that it stores, by name and position."""
    lease: Lease | None = None
    kept: set[Keep] = field(default_factory=set)
    """Entries of ``request.keeps`` that are already stored."""
    counts: dict[str, int] = field(
        default_factory=lambda: {"exact": 0, "placed": 0, "recomputed": 0, "missing": 0}
    )
    """Tokens of the context by the source of their KV, for ``meta_info.hive.kv``."""

    @classmethod
    def of(cls, request: KvRequest, tenant: str, adapter: str, tokens: array[int]) -> KvState:
        """Return the state of a request that has just arrived."""
        return cls(request, corrector_of(request.corrector), tenant, adapter, tokens)

    @property
    def tainted(self) -> bool:
        """Whether its KV must not be reused by exact requests."""
        return self.request.choreographed or self.lease is not None

    def key(self, name: str, tokens: Any, start: int, end: int) -> SegmentKey:
        """Return the key of a span's encoding."""
        if name not in CONTEXTS:
            return SegmentKey(self.tenant, self.adapter, name)
        place = f"{name}:{start}:{end}"
        if place not in self.keys:
            named = f"{name}:{digest(tokens[start:end])}:{self.request.extra_key}"
            self.keys[place] = SegmentKey(self.tenant, self.adapter, named)
        return self.keys[place]


def state_of(req: Any) -> KvState | None:
    """Return the segment-store state of a request; None for most requests."""
    attached = getattr(req, "hive", None)
    return attached.kv if attached is not None else None
