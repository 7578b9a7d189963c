"""Hive: write agents as plain coroutines, compile them to flow graphs, and search over them with supervisors.

``from hive import agent, gen, run`` is all that a program needs.  This package re-exports the frontend and imports
nothing heavy: neither torch nor SGLang.
"""

from hive_frontend import *  # noqa: F403
from hive_frontend import __all__ as __all__
