"""Which placed tokens are computed again, in the context that they were placed in."""

from hive.server.kv_segments.correctors.base import Corrector, PlacedRun
from hive.server.kv_segments.correctors.blend import Blend
from hive.server.kv_segments.correctors.everything import RecomputeAll
from hive.server.kv_segments.correctors.first_k import FirstK
from hive.server.kv_segments.correctors.nothing import RecomputeNone
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
