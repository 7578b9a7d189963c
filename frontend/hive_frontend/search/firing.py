"""Firings: transitions from a state to its successors, and the context variables that they run with."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from operator import eq, is_
from typing import Any

from hive_frontend.compiler import Yield
from hive_frontend.compiler.process import Waiting
from hive_frontend.operation import Operation
from hive_frontend.operations.fork import ATOMS
from hive_frontend.operations.transition import Transition
from hive_frontend.supervisors.state import State

_BY_IDENTITY: Any = object.__eq__


def comparison(base: Context) -> Callable[[Context, Context], bool]:
    """Return a function that compares contexts with the same variables as `base`: whether all values are identical.

    `==` is faster; it is enough if equal values are identical or immutable.
    """
    plain = all(type(value).__eq__ is _BY_IDENTITY or type(value) in ATOMS for value in base.values())
    return eq if plain else _same


def _same(one: Context, other: Context) -> bool:
    """Whether two contexts have identical values. Equality is not enough: one of two equal objects may change later."""
    return len(one) == len(other) and all(map(is_, one.values(), other.values()))


class Firing:
    """One firing of a state, in flight."""

    __slots__ = ("answer", "borrowed", "context", "operation", "state", "transition", "waiting")

    def __init__(self, state: State, waiting: Waiting, transition: Transition, borrowed: bool) -> None:
        assert not isinstance(waiting.operation, Yield)
        self.state = state
        self.waiting = waiting
        self.operation: Operation[Any] = waiting.operation
        self.transition = transition
        self.borrowed = borrowed
        """Whether the next state may still hold objects of the caller."""
        self.context = waiting.context
        """Context variables of the operation and of the code that follows it."""
        self.answer: Any = None
