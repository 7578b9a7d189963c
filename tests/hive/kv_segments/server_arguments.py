"""Arguments of a server that can have a segment store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def segments_arguments(**changed: Any) -> Any:
    """What SGLang's arguments must hold for a store to be there, but for those that are `changed`."""
    plain: dict[str, Any] = {
        "kv_cache_dtype": "auto",
        "speculative_algorithm": None,
        "page_size": 1,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "disaggregation_mode": "null",
        "disable_radix_cache": False,
        "enable_hierarchical_cache": False,
        "radix_cache_backend": None,
        "enable_streaming_session": False,
    }
    return SimpleNamespace(**{**plain, **changed})
