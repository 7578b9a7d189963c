"""Cuts long functions where ways through them join.

What follows an `if` with an await in it belongs to two segments, and what follows ten of them to eleven. So that
the emitted code stays linear in the source, a block is cut after a few such statements: the code before ends as
if it awaited something, and the code behind goes on at once.
"""

from __future__ import annotations

import ast

from hive_frontend.compiler.analysis.syntax import Suspend, blocks_of, load
from hive_frontend.compiler.running import hidden

_POINTS = 4
"""Suspension points in statements of a block, after which it is cut."""


class Join(Suspend):
    """A suspension that waits for nothing."""

    def __init__(self, origin: ast.stmt, point: int) -> None:
        super().__init__(load(hidden.ONWARD), [], point, origin)


def add_joins(body: list[ast.stmt], suspensions: list[Suspend]) -> int:
    """Cut the blocks of a function in normal form, and append the joins to its suspensions; returns how many
    points there are in `body`."""
    inside = since = 0
    for statement in body.copy():
        points = sum(add_joins(block, suspensions) for block in blocks_of(statement))
        if isinstance(statement, Suspend):
            # No way leads past it.
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
