"""The compiler: turns an `async def` into a program whose states are data.

Python's coroutines cannot be copied, so a search cannot fork them. The compiler splits the function at its awaits
instead. `analysis` finds unsupported constructs, `lowering` makes every await a statement of its own and computes the
variables that each state carries, `emission` emits one plain function per state, and `compilation` calls these passes.
`program` holds the result, `running` has the functions that it calls, and `process` runs it.
"""

from __future__ import annotations

from hive_frontend.compiler.compilation import program_of
from hive_frontend.compiler.program import Program
from hive_frontend.compiler.running.outcome import Invoke, Outcome, Point, Returned, Suspended, Thrown, Yield

__all__ = [
    "Invoke",
    "Outcome",
    "Point",
    "Program",
    "Returned",
    "Suspended",
    "Thrown",
    "Yield",
    "program_of",
]
