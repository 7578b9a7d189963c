"""The contract of operations, which are what agent code awaits, and the environment that performs them.

All other modules, model clients included, are layers above this one. So an operation is performed "in a transition"
whose type is unknown here (`hive_frontend.operations.transition`).
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from hive_frontend.errors import BranchFailed, HiveError, NoModelError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_Op = TypeVar("_Op", bound="Operation[Any]")


class NotNow:
    """The type of `NOT_NOW`."""


NOT_NOW: Final = NotNow()
"""Returned by an operation that cannot be performed without waiting."""


class Call(Protocol):
    """A call of a model or a person, as code sees it that displays calls."""

    @property
    def shown(self) -> str:
        """The prompt or the question, for people to read."""


class Operation(ABC, Generic[T_co]):
    """Something that agent code awaits. Creating it only describes it; awaiting it performs it.

    In a compiled agent an awaited operation ends a state. The runtime performs it once for every firing of
    the state, each time on a separate fork (`__fork__`), so that its arguments belong to the branch.
    """

    __slots__ = ()

    name: str | None
    """Name of the state that waits for the operation; None to name it after its line."""

    sleeps: bool = False
    """Whether it waits for another agent or a person; its state then frees its concurrency slot while it waits."""

    options: int = 0
    """How many answers a supervisor can choose from; 0 if it cannot choose."""

    @abstractmethod
    async def perform(self, transition: Any) -> T_co:
        """Perform the operation as part of a `Transition`, and return the result of the `await`."""

    def perform_now(self, transition: Any) -> T_co | NotNow:
        """Perform the operation if it need not wait; otherwise return `NOT_NOW`, without any effect.

        Saves an asyncio task for each transition whose answer is available at once.
        """
        return NOT_NOW

    @abstractmethod
    def __fork__(self, memo: dict[int, Any]) -> Operation[T_co]:
        """Return the same operation for another branch. The agent's data in it is copied under `memo`, as by
        `fork.copy`."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Operation[T_co]:
        return self.__fork__(memo)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of models and people that it will make, as far as they are known before it is performed."""
        return ()

    # Without these a forgotten `await` would go unnoticed: any object is true, differs from a string, and can be
    # formatted.

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"{self!r} has no result yet: write `await` before the call")

    __bool__ = __eq__ = __str__ = __format__ = __iter__ = __contains__ = _refuse
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{type(self).__name__.strip('_').lower()}(...), not awaited>"

    def __await__(self) -> Generator[Any, None, T_co]:
        """Perform the operation in a native run."""
        around = _environment.get()
        if around is None:
            raise NoModelError(
                "an operation was awaited outside a run, so there is no model to call; "
                "run the agent with run(agent, ..., model=...), or await it inside `async with Session(model):`"
            )
        result: T_co = yield from around.perform(self).__await__()
        return result


class Environment(Protocol):
    """The environment of running code: a step of a compiled agent, a native agent, or a bare session."""

    @property
    def client(self) -> object:
        """The default model; None if there is none."""

    async def perform(self, operation: Operation[T], /) -> T:
        """Perform an operation that native code awaits."""


class Scope:
    """One step of a compiled agent, that is its code between two awaits. Collects the operations and the score."""

    __slots__ = ("earlier_operations", "last_operation", "score", "session")

    def __init__(self, session: Environment) -> None:
        self.last_operation: Operation[Any] | None = None
        """The last operation that the code has created since its last await."""
        self.earlier_operations: list[Operation[Any]] = []
        """The operations created before it in the same step."""
        self.score: float | None = None
        self.session = session

    @property
    def client(self) -> object:
        return self.session.client

    async def perform(self, operation: Operation[T], /) -> T:
        raise HiveError(
            "an operation was awaited in code that the compiler does not compile; await it in the agent, or in an "
            "`async def` helper that the agent awaits"
        )


_environment: ContextVar[Environment | None] = ContextVar("hive_surroundings", default=None)

current_environment = _environment.get
"""Return the environment of the calling code."""
enter, leave = _environment.set, _environment.reset
"""`entered`, split in two for the hot path of the runtime."""


@contextmanager
def entered(around: Environment) -> Iterator[None]:
    """Run the block in the environment `around`."""
    token = enter(around)
    try:
        yield
    finally:
        leave(token)


SCOPES_WITH_OPERATIONS: set[Scope] = set()
"""Steps that have created operations. Usually empty, so most steps only check that."""


def tracked(operation: _Op) -> _Op:
    """Register a new operation with the current step, which warns if it is never awaited. Returns `operation`."""
    scope = current_environment()
    if type(scope) is Scope:
        SCOPES_WITH_OPERATIONS.add(scope)
        if scope.last_operation is not None:
            scope.earlier_operations.append(scope.last_operation)
        scope.last_operation = operation
    return operation


def never_awaited(scope: Scope) -> list[Operation[Any]]:
    """Return the operations that a step created and that nothing refers to any more: an `await` was forgotten."""
    created, found = scope.earlier_operations, []
    assert scope.last_operation is not None
    created.append(scope.last_operation)
    scope.last_operation = None
    while created:
        operation = created.pop()
        if sys.getrefcount(operation) == 2:
            found.append(operation)
    return found


class Offer(float):
    """A score, with what the agent would return if the search ended here."""

    result: Any


_NO_OFFER: Any = object()


def score(value: float, result: Any = _NO_OFFER) -> None:
    """Set the score of the current state: how promising this branch is, higher being better.

    It applies to the state that begins at the next `await` (or to the result, at `return`). A state without a score
    of its own inherits that of the state before it.

    With a `result` it also offers what the agent would return if it ended here. A search that ends before the branch
    does, because it is stopped or its budget is spent, returns the best offer if no branch has returned better.
    """
    scope = current_environment()
    if not isinstance(scope, Scope):
        raise HiveError("score() was called outside a run; call it in the code of an agent that is running")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"score() takes a number, not {value!r}") from None
    if math.isnan(number):
        raise ValueError("a score cannot be NaN: supervisors compare scores, and NaN compares with none")
    if result is not _NO_OFFER:
        number = Offer(number)
        number.result = result
    scope.score = number


def fail(why: str) -> NoReturn:
    """End this branch as failed. The search continues with the others; a native run raises `BranchFailed`."""
    raise BranchFailed(str(why))
