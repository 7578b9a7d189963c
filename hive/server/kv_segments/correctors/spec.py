"""Creates correctors from their names and settings."""

from __future__ import annotations

from typing import Any

from hive.server.kv_segments.corrector_names import DEFAULT_SHARE, check_corrector
from hive.server.kv_segments.correctors.base import Corrector
from hive.server.kv_segments.correctors.blend import Blend
from hive.server.kv_segments.correctors.first_k import FirstK
from hive.server.kv_segments.correctors.recompute_all import RecomputeAll
from hive.server.kv_segments.correctors.recompute_none import RecomputeNone


def corrector_of(spec: Any, field: str = "corrector") -> Corrector:
    """Return the corrector of a specification: a name, or an object with ``kind`` and settings.

    Raises:
        RequestError: with the invalid field (within ``field``) and its rule.
    """
    kind, settings = check_corrector(spec, field)
    match kind:
        case "first-k" if "tokens" in settings:
            return FirstK(tokens=settings["tokens"])
        case "first-k":
            return FirstK(share=settings.get("share", DEFAULT_SHARE))
        case "blend":
            return Blend(settings.get("share", DEFAULT_SHARE), settings.get("block"))
        case "recompute-all":
            return RecomputeAll()
        case _:
            return RecomputeNone()
