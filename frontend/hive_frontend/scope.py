"""What agent code runs in: where `score`, `fail` and natively awaited operations find their surroundings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hive_frontend.errors import BranchFailed, HiveError, NoModelError
from hive_frontend.operations.identity import PIECE, LongPath, Path, state_id

if TYPE_CHECKING:
    from hive_frontend.operation import Operation
    from hive_frontend.operations.transition import Caller
    from hive_frontend.search.session import Session

T = TypeVar("T")


class Scope:
    """The stretch of a compiled agent's code between two awaits; collects what it says about its state."""

    __slots__ = ("earlier", "made", "score", "session")

    def __init__(self, session: Session) -> None:
        self.made: Operation[Any] | None = None
        """The last operation that the code has made since its last await."""
        self.earlier: list[Operation[Any]] = []
        """Those before it."""
        self.score: float | None = None
        self.session = session


class NativeScope(Scope):
    """The whole of one agent's run as an ordinary coroutine.

    It numbers its operations like a search that fires every state once, so that the requests (states and
    seeds included) are those of the compiled program under such a supervisor.
    """

    __slots__ = ("_long", "caller", "state")

    def __init__(self, session: Session, caller: Caller, root: Path) -> None:
        super().__init__(session)
        self.caller = caller
        self.begin(root)

    def begin(self, root: Path) -> None:
        """Go on at another path."""
        self.state = root
        """The path of the state that the next operation ends."""
        self._long: LongPath | None = None

    async def perform(self, operation: Operation[T]) -> T:
        """Perform `operation` as the next transition of this run."""
        from hive_frontend.operations.transition import Transition

        path, self.state = self.state, (*self.state, 0)
        if len(path) > PIECE:
            self._long = self._long.then(0) if self._long else LongPath(self.session.seed, path)
        id = self._long.id if self._long else state_id(path)
        return await operation.perform(Transition(self.session, self.caller, path, id, 0, long=self._long))


_scope: ContextVar[Scope | Session | None] = ContextVar("hive_scope", default=None)


def current_scope() -> Scope | Session | None:
    """What the calling code runs in: a stretch of a compiled agent, a native agent, or a bare session."""
    return _scope.get()


here = _scope.get
"""The same for the hot path of the runtime."""


@contextmanager
def entered(scope: Scope | Session) -> Iterator[None]:
    """Make `scope` the current one for the duration of the block."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


enter, leave = _scope.set, _scope.reset
"""`entered` for the hot path of the runtime."""


async def perform_natively(operation: Operation[Any]) -> Any:
    """Perform an operation that native code awaits."""
    scope = _scope.get()
    if isinstance(scope, NativeScope):
        return await scope.perform(operation)
    if isinstance(scope, Scope):
        raise HiveError(
            "an operation was awaited by code that the compiler does not see; await it in the agent or in an "
            "`async def` helper that the agent awaits"
        )
    if scope is None:
        raise NoModelError(
            "an operation was awaited outside a run, so there is no model to ask; "
            "run the agent with run(agent, ..., model=...), or await it inside `async with Session(model):`"
        )
    return await scope.scope().perform(operation)


def score(value: float) -> None:
    """Set the score of the current state: how promising this branch is, higher being better.

    It holds for the state that begins at the next `await` (or for the result, at `return`). A state that is
    given no score keeps that of the state before it.
    """
    scope = _scope.get()
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
