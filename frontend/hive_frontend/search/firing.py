"""Firings: transitions from a state to its successors."""

from __future__ import annotations

from typing import Any

from hive_frontend.compiler import Yield
from hive_frontend.compiler.process import Waiting
from hive_frontend.operation import Operation
from hive_frontend.operations.transition import Transition
from hive_frontend.supervisors.state import State


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
