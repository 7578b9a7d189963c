"""Hive: agents as plain coroutines, compiled to flow graphs, searched by supervisors.

``from hive import agent, gen, run`` is all a program needs.  This package re-exports the frontend, each name when it
is first used, and imports nothing heavier: no torch, no SGLang.
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
