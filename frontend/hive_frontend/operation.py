"""What agent code can await: the contract of all operations, and what they find around them.

Everything else stands above this module, models and their clients too: so an operation is performed "in a
transition" of which nothing is known here (`hive_frontend.operations.transition`).
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
"""Says that an operation cannot be performed without waiting."""


class Call(Protocol):
    """A model call, for those who only look at it."""

    @property
    def shown(self) -> str:
        """What it asks, as a person would read it."""


class Operation(ABC, Generic[T_co]):
    """Something that agent code awaits: described when it is made, done when it is awaited.

    In a compiled agent an awaited operation ends a state. The runtime performs it once for every firing of
    the state, each time on a fork of its own (`__fork__`), so that what it is given belongs to the branch.
    """

    __slots__ = ()

    name: str | None
    """Name of the state that waits for the operation; None to name it after its line."""

    sleeps: bool = False
    """Whether it waits for another agent, so that its state sleeps instead of taking up a slot."""

    @abstractmethod
    async def perform(self, transition: Any) -> T_co:
        """Do it, as part of a `Transition`; returns what the awaiting code gets."""

    def perform_now(self, transition: Any) -> T_co | NotNow:
        """The same where nothing has to be waited for, else `NOT_NOW` and no effect.

        Saves a task of the event loop for each transition whose answer is there at once.
        """
        return NOT_NOW

    @abstractmethod
    def __fork__(self, memo: dict[int, Any]) -> Operation[T_co]:
        """The same operation for one branch of several: what it holds of the agent's data is copied under
        `memo`, as `fork.copy` does it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Operation[T_co]:
        return self.__fork__(memo)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The model calls that it makes, as far as they are known before it is performed."""
        return ()

    # A forgotten `await` would be silent: any object is true, differs from a text, and can be formatted.

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"{self!r} has no answer yet: write `await` before the call")

    __bool__ = __eq__ = __str__ = __format__ = __iter__ = __contains__ = _refuse
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{type(self).__name__.strip('_').lower()}(...), not awaited>"

    def __await__(self) -> Generator[Any, None, T_co]:
        """Perform the operation in a native run."""
        around = _surroundings.get()
        if around is None:
            raise NoModelError(
                "an operation was awaited outside a run, so there is no model to ask; "
                "run the agent with run(agent, ..., model=...), or await it inside `async with Session(model):`"
            )
        result: T_co = yield from around.perform(self).__await__()
        return result


class Surroundings(Protocol):
    """What code runs in: a stretch of a compiled agent, a native agent, or a bare session."""

    @property
    def client(self) -> object:
        """The model that is asked where no other is named; None if there is none."""

    async def perform(self, operation: Operation[T], /) -> T:
        """Perform an operation that native code awaits."""


class Scope:
    """The stretch of a compiled agent's code between two awaits; collects what it says about its state."""

    __slots__ = ("earlier", "made", "score", "session")

    def __init__(self, session: Surroundings) -> None:
        self.made: Operation[Any] | None = None
        """The last operation that the code has made since its last await."""
        self.earlier: list[Operation[Any]] = []
        """Those before it."""
        self.score: float | None = None
        self.session = session

    @property
    def client(self) -> object:
        return self.session.client

    async def perform(self, operation: Operation[T], /) -> T:
        raise HiveError(
            "an operation was awaited by code that the compiler does not see; await it in the agent or in an "
            "`async def` helper that the agent awaits"
        )


_surroundings: ContextVar[Surroundings | None] = ContextVar("hive_surroundings", default=None)

here = _surroundings.get
"""What the calling code runs in."""
enter, leave = _surroundings.set, _surroundings.reset
"""`entered` for the hot path of the runtime."""


@contextmanager
def entered(around: Surroundings) -> Iterator[None]:
    """What the code of the block runs in."""
    token = enter(around)
    try:
        yield
    finally:
        leave(token)


MAKING: set[Scope] = set()
"""Stretches of code that have made such operations; empty most of the time, which is all that most steps look at."""


def to_be_awaited(operation: _Op) -> _Op:
    """`operation` as a function that makes it gives it to agent code, which is warned if it drops it."""
    scope = here()
    if type(scope) is Scope:
        MAKING.add(scope)
        if scope.made is not None:
            scope.earlier.append(scope.made)
        scope.made = operation
    return operation


def forgotten(scope: Scope) -> list[Operation[Any]]:
    """Operations that code has made, and that nobody refers to any more."""
    made, found = scope.earlier, []
    assert scope.made is not None
    made.append(scope.made)
    scope.made = None
    while made:
        operation = made.pop()
        if sys.getrefcount(operation) == 2:
            found.append(operation)
    return found


def score(value: float) -> None:
    """Set the score of the current state: how promising this branch is, higher being better.

    It holds for the state that begins at the next `await` (or for the result, at `return`). A state that is
    given no score keeps that of the state before it.
    """
    scope = here()
    if not isinstance(scope, Scope):
        raise HiveError("score() was called outside a run; it scores the state of a running agent")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"a score is a number, not {value!r}") from None
    if math.isnan(number):
        raise ValueError("a score cannot be NaN: it would compare with no other score")
    scope.score = number


def fail(why: str) -> NoReturn:
    """Give this branch up. The search goes on with the others; a native run raises `BranchFailed`."""
    raise BranchFailed(str(why))
