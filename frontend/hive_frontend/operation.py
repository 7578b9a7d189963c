"""What agent code can await: the contract of all operations."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast

from hive_frontend.scope import Scope, here, perform_natively

if TYPE_CHECKING:
    from hive_frontend.operations.call import ModelCall
    from hive_frontend.operations.transition import Transition

T_co = TypeVar("T_co", covariant=True)
_Op = TypeVar("_Op", bound="Operation[Any]")


class NotNow:
    """The type of `NOT_NOW`."""


NOT_NOW: Final = NotNow()
"""Says that an operation cannot be performed without waiting."""


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
    async def perform(self, transition: Transition) -> T_co:
        """Do it, as part of `transition`; returns what the awaiting code gets."""

    def perform_now(self, transition: Transition) -> T_co | NotNow:
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
    def calls(self) -> tuple[ModelCall[Any], ...]:
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
        result: T_co = yield from perform_natively(self).__await__()
        return result


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
    made.append(cast("Operation[Any]", scope.made))
    scope.made = None
    while made:
        operation = made.pop()
        if sys.getrefcount(operation) == 2:
            found.append(operation)
    return found
