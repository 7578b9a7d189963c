"""Correctors by their names."""

from __future__ import annotations

from typing import Any

from hive.server.kv_segments.corrector_names import DEFAULT_SHARE, check_corrector
from hive.server.kv_segments.correctors.base import Corrector
from hive.server.kv_segments.correctors.blend import Blend
from hive.server.kv_segments.correctors.everything import RecomputeAll
from hive.server.kv_segments.correctors.first_k import FirstK
from hive.server.kv_segments.correctors.nothing import RecomputeNone


def corrector_of(spec: Any, field: str = "corrector") -> Corrector:
    """A corrector by its name, or by an object with ``kind`` and settings.

    Raises:
        RequestError: naming the field at fault (within ``field``) and its rule.
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
