"""Splits long functions where control flow joins.

Code after an `if` with an await in it is part of two segments; code after ten of them is part of eleven. To keep the
size of the emitted code linear, a block is split after a few such statements by a join: a suspension point that
resumes at once.
"""

from __future__ import annotations

import ast

from hive_frontend.compiler.analysis.syntax import Suspend, blocks_of, load
from hive_frontend.compiler.running import hidden

_POINTS = 4
"""Number of suspension points in compound statements of a block after which the block is split."""


class Join(Suspend):
    """A suspension that resumes at once."""

    def __init__(self, origin: ast.stmt, point: int) -> None:
        super().__init__(load(hidden.NO_WAIT), [], point, origin)


def add_joins(body: list[ast.stmt], suspensions: list[Suspend]) -> int:
    """Split the blocks of a function in normal form, and append the joins to `suspensions`. Return the number of
    suspension points in `body`."""
    inside = since = 0
    for statement in body.copy():
        points = sum(add_joins(block, suspensions) for block in blocks_of(statement))
        if isinstance(statement, Suspend):
            # Control cannot bypass it.
            points, since = 1, 0
        elif points:
            if since and since + points > _POINTS:
                join = Join(statement, len(suspensions))
                suspensions.append(join)
                body.insert(body.index(statement), join)
                since = 0
            since += points
        inside += points
    return inside
