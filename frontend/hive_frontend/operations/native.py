"""The environment of agents that run as ordinary coroutines."""

from __future__ import annotations

from typing import TypeVar

from hive_frontend.operation import Operation, Scope
from hive_frontend.operations.identity import PIECE, LongPath, Path, state_id
from hive_frontend.operations.transition import Caller, SessionContract, Transition

T = TypeVar("T")


class NativeScope(Scope):
    """One agent's whole run as an ordinary coroutine.

    It numbers operations like a search that fires every state once. So the requests, including states and seeds, are
    the same as those of the compiled program under such a supervisor.
    """

    __slots__ = ("_long", "caller", "state")

    session: SessionContract

    def __init__(self, session: SessionContract, caller: Caller, root: Path) -> None:
        super().__init__(session)
        self.caller = caller
        self.begin(root)

    def begin(self, root: Path) -> None:
        """Continue at another path."""
        self.state = root
        """Path of the state that the next operation ends."""
        self._long: LongPath | None = None

    async def perform(self, operation: Operation[T], /) -> T:
        """Perform `operation` as the next transition of this run."""
        path, self.state = self.state, (*self.state, 0)
        if len(path) > PIECE:
            self._long = self._long.then(0) if self._long else LongPath(self.session.seed, path)
        id = self._long.id if self._long else state_id(path)
        return await operation.perform(Transition(self.session, self.caller, path, id, 0, long=self._long))
