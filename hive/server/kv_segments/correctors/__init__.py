"""Correctors: which placed tokens to recompute in the context of the request."""

from hive.server.kv_segments.correctors.base import Corrector, PlacedRun
from hive.server.kv_segments.correctors.blend import Blend
from hive.server.kv_segments.correctors.first_k import FirstK
from hive.server.kv_segments.correctors.recompute_all import RecomputeAll
from hive.server.kv_segments.correctors.recompute_none import RecomputeNone
from hive.server.kv_segments.correctors.spec import corrector_of

__all__ = [
    "Blend",
    "Corrector",
    "FirstK",
    "PlacedRun",
    "RecomputeAll",
    "RecomputeNone",
    "corrector_of",
]
