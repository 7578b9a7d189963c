"""Hive: agents as plain coroutines, compiled to flow graphs, searched by supervisors.

``from hive import agent, gen, run`` is all a program needs.  This package re-exports the frontend and imports
nothing heavier: no torch, no SGLang.
"""

from hive_frontend import *  # noqa: F403
from hive_frontend import __all__ as __all__
