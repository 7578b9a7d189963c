"""What agent code runs in: where `score`, `fail` and natively awaited calls find their surroundings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NoReturn

from hive_frontend.errors import BranchFailed, HiveError
from hive_frontend.identity import Path
from hive_frontend.reply import Reply

if TYPE_CHECKING:
    from hive_frontend.call import Operation
    from hive_frontend.session import Session


class Scope:
    """The stretch of agent code between two model calls; collects what that code says about its state."""

    def __init__(self) -> None:
        self.score: float | None = None


class NativeScope(Scope):
    """The whole of one agent's run as an ordinary coroutine.

    It numbers its calls like a search that fires every state once, so that the requests (states and seeds
    included) are those of the compiled program under such a supervisor.
    """

    def __init__(self, session: Session, agent: str) -> None:
        super().__init__()
        self.session = session
        self._agent = agent
        self._path: Path | None = None

    async def perform(self, operation: Operation) -> list[Reply]:
        """Make the calls of `operation` as the next transition of this run."""
        path = self.session.new_root() if self._path is None else self._path
        self._path = (*path, 0)
        return await self.session.perform(operation, agent=self._agent, path=path, firing=0)


_scope: ContextVar[Scope | None] = ContextVar("hive_scope", default=None)


def current_scope() -> Scope | None:
    """The scope that the calling code runs in."""
    return _scope.get()


@contextmanager
def entered(scope: Scope) -> Iterator[None]:
    """Make `scope` the current one for the duration of the block."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def score(value: float) -> None:
    """Set the score of the current state: how promising this branch is, higher being better.

    It holds for the state that begins at the next `await` (or for the result, at `return`). A state that is
    given no score keeps that of the state before it.
    """
    scope = _scope.get()
    if scope is None:
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
