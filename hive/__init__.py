"""Hive: write agents as plain coroutines, compile them to flow graphs, and search over them with supervisors.

``from hive import agent, gen, run`` is all that a program needs.  This package re-exports the frontend, each name on
first use, and imports nothing heavy: neither torch nor SGLang.
"""

from typing import TYPE_CHECKING, Any

import hive_frontend
from hive_frontend import __all__ as __all__

if TYPE_CHECKING:
    from hive_frontend import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(hive_frontend, name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
