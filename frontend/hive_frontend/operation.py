"""What agent code can await: the contract of all operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hive_frontend.scope import perform_natively

if TYPE_CHECKING:
    from hive_frontend.transition import Transition

T_co = TypeVar("T_co", covariant=True)


class Operation(ABC, Generic[T_co]):
    """Something that agent code awaits: described when it is made, done when it is awaited.

    In a compiled agent an awaited operation ends a state. The runtime performs it once for every firing of
    the state, each time on a fork of its own (`__fork__`), so that what it is given belongs to the branch.
    """

    __slots__ = ()

    name: str | None
    """Name of the state that waits for the operation; None to name it after its line."""

    @abstractmethod
    async def perform(self, transition: Transition) -> T_co:
        """Do it, as part of `transition`; returns what the awaiting code gets."""

    @abstractmethod
    def __fork__(self, memo: dict[int, Any]) -> Operation[T_co]:
        """The same operation for one branch of several: what it holds of the agent's data is copied under
        `memo`, as `fork.fork` does it."""

    def __await__(self) -> Generator[Any, None, T_co]:
        """Perform the operation in a native run."""
        result: T_co = yield from perform_natively(self).__await__()
        return result
