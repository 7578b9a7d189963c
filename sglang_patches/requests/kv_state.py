"""What a request has of the segment store, as Hive attaches it to a request of the engine."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import torch

from hive.server.kv_segments.correctors import Corrector, PlacedRun, corrector_of
from hive.server.kv_segments.plan import Piece, Run
from hive.server.kv_segments.request import CONTEXTS, Keep, KvRequest
from hive.server.kv_segments.segment import EncodedSegment, Placement, SegmentKey, digest


@dataclass(eq=False, slots=True)
class Lease:
    """What one admitted request has of the store, and what of its context it computes itself."""

    begin: int
    """Index of the first token that is not the exact tree's."""
    pieces: list[Piece[EncodedSegment]]
    """From :attr:`begin` on, without holes."""
    readers: list[tuple[EncodedSegment, Placement]]
    """To be released."""
    private: torch.Tensor
    """int64: slots of the request's own, for what it computes or could not share."""
    spare: torch.Tensor
    """int64: those of them whose tokens a corrector chooses later."""
    indices: torch.Tensor
    """int64 [end - begin]: the slots of all tokens."""
    placed: list[PlacedRun]
    runs: list[Run]
    """To be computed; without those that a corrector chooses later."""
    waiting: bool = True
    """Whether the runs are still to be computed."""

    @property
    def end(self) -> int:
        """Index behind the last token."""
        return self.pieces[-1].end


@dataclass(eq=False, slots=True)
class KvState:
    """What Hive attaches to a request that takes part, as ``Req.hive.kv``."""

    request: KvRequest
    corrector: Corrector
    tenant: str
    adapter: str
    tokens: array[int]
    """Of the prompt."""
    keys: dict[str, SegmentKey] = field(default_factory=dict)
    """Of its spans and of what it keeps, by name and place."""
    lease: Lease | None = None
    kept: set[Keep] = field(default_factory=set)
    """Those that were stored while the request runs on."""
    said: dict[str, int] = field(
        default_factory=lambda: {"exact": 0, "placed": 0, "recomputed": 0, "missing": 0}
    )
    """What the answer tells: tokens of the context by where they came from."""

    @classmethod
    def of(cls, request: KvRequest, tenant: str, adapter: str, tokens: array[int]) -> KvState:
        """The state of a request that has just arrived."""
        return cls(request, corrector_of(request.corrector, "corrector"), tenant, adapter, tokens)

    @property
    def tainted(self) -> bool:
        """Whether its KV is of no use to exact requests."""
        return self.request.choreographed or self.lease is not None

    def key(self, name: str, tokens: Any, start: int, end: int) -> SegmentKey:
        """The key of a span's encoding."""
        if name not in CONTEXTS:
            return SegmentKey(self.tenant, self.adapter, name)
        place = f"{name}:{start}:{end}"
        if place not in self.keys:
            named = f"{name}:{digest(tokens[start:end])}:{self.request.extra_key}"
            self.keys[place] = SegmentKey(self.tenant, self.adapter, named)
        return self.keys[place]


def state_of(req: Any) -> KvState | None:
    """What a request asks of the store; None for most."""
    attached = getattr(req, "hive", None)
    return attached.kv if attached is not None else None
