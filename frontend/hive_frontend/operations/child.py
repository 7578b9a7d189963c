"""Child agents: the handle that `spawn` returns, and its operations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from hive_frontend.errors import ChildEnded, HiveError
from hive_frontend.operation import Operation, entered, tracked
from hive_frontend.operations.budget import Meter
from hive_frontend.operations.fork import Memo, copy
from hive_frontend.operations.native import NativeScope
from hive_frontend.operations.transition import Caller, RunContract, SessionContract, Transition

T = TypeVar("T")

Status = Literal["new", "yielded", "ended"]


class AgentContract(Protocol):
    """What a child needs of its agent."""

    @property
    def name(self) -> str: ...
    @property
    def is_generator(self) -> bool: ...

    def bind(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the values of all parameters for a call with these arguments; `TypeError` if they do not match."""

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, and return its coroutine or async generator."""

    def caller(self, session: SessionContract, around: Meter | None = None, /) -> Caller:
        """Return the `Caller` for the agent's calls in a session."""


class Child(Generic[T]):
    """An agent that another agent has spawned.

        finder = spawn(find_context, bug)
        code = await finder.next()               # runs it to its first `yield`, and returns the yielded value
        patch = await gen(...)
        await finder.resume(patch)               # `patch = yield code` continues, up to the next `yield`
        code = await finder.next()               # returns the value yielded there

    It runs only while it is awaited, under its own agent's supervisor; if a search splits it into branches, the one
    with the best score continues. `gather` runs several children concurrently. Between awaits it is data like any
    other variable of its parent: when the parent's state forks, each branch gets its own copy of the child, and
    objects that parent and child share are still shared in the copies.

    Awaiting the child itself runs it to its end. Its result is its return value or, for a generator, the last
    yielded value. A child that fails in all its branches fails the branch that awaits it. An exception in its code
    is raised at the `await`, and ends the child. A child whose parent branch is dropped does not finish: its
    `finally` blocks do not run.
    """

    def __init__(self, agent: AgentContract, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        agent.bind(*args, **kwargs)
        self._agent = agent
        self._args = args
        self._kwargs = kwargs
        self.status: Status = "new"
        """`new` before its first run, `yielded` while it is suspended at a `yield`, `ended` after its end."""
        self.result: T | None = None
        """The last value that it yielded or returned."""
        self.score: float | None = None
        """The score of its state."""
        self._taken = True
        """Whether `next` has returned the result."""
        self._running = False
        self._caller: Caller | None = None
        """The agent as the caller of models, with its meter."""
        self._waiting: Any = None
        self._generator: AsyncGenerator[T, Any] | None = None
        self._scope: NativeScope | None = None

    def next(self) -> Operation[T]:
        """Return the next value that the child yields or returns."""
        return tracked(_Step(self, None, take=True))

    def resume(self, value: object) -> Operation[None]:
        """Send `value` to the `yield` at which the child is suspended, and run it to its next `yield`."""
        return cast("Operation[None]", tracked(_Step(self, value, take=False)))

    def __hive_operation__(self) -> Operation[T]:
        return _Finish(self)

    def __await__(self) -> Generator[Any, None, T]:
        return self.__hive_operation__().__await__()

    def __fork__(self, memo: Memo) -> Child[T]:
        if self._generator is not None:
            raise HiveError(
                "a child that runs as an ordinary coroutine cannot be copied: run its parent with run(agent, ...)"
            )
        fork: Child[T] = Child.__new__(Child)
        memo[id(self)] = fork
        fork._agent = self._agent
        fork._args = copy(self._args, memo)
        fork._kwargs = copy(self._kwargs, memo)
        fork._waiting = copy(self._waiting, memo)
        fork.result = copy(self.result, memo)
        fork.status, fork.score, fork._taken = self.status, self.score, self._taken
        fork._running = False
        fork._caller = None if self._caller is None else self._caller.fork()
        fork._generator = fork._scope = None
        return fork

    __deepcopy__ = __fork__

    def __repr__(self) -> str:
        return f"<child {self._agent.name}, {self.status}>"

    # Used by the operations

    def require_running(self) -> None:
        """Raise `ChildEnded` if the child has ended."""
        if self.status == "ended":
            raise ChildEnded(
                f"agent {self._agent.name!r} has ended and yields no more values; check the child's `status` first, or "
                "read its last value from `result`"
            )

    @property
    def has_result(self) -> bool:
        """Whether it has a result that `next` has not returned yet."""
        return not self._taken

    def take(self) -> T:
        """Return the result, and mark it as returned."""
        self._taken = True
        return cast(T, self.result)

    async def advance(self, value: object, transition: Transition) -> None:
        """Run it to its next `yield` or to its end. Any exception, also cancellation, ends it."""
        if self._running:
            raise HiveError(
                f"agent {self._agent.name!r} is already running: await its operations one after the other"
            )
        self._running = True
        try:
            if transition.run is None:
                await self._advance_natively(value, transition)
            else:
                await self._search(value, transition, transition.run)
        except BaseException:
            self.status, self._waiting = "ended", None
            raise
        finally:
            self._running = False
            # A generator that has ended has not yielded a new value.
            self._taken = self.status == "ended" and self._agent.is_generator

    async def _search(self, value: object, transition: Transition, run: RunContract) -> None:
        agent = self._agent
        if self._caller is None:
            self._caller = agent.caller(transition.session, transition.caller.meter)
        # From here on the search owns the suspended code and the arguments.
        waiting, self._waiting = self._waiting, None
        args, self._args = self._args, ()
        kwargs, self._kwargs = self._kwargs, {}
        if waiting is None:
            best = await run.start_search(agent, agent.bind(*args, **kwargs), self._caller, transition)
        else:
            best = await run.resume_search(agent, waiting, value, self.score, self._caller, transition)
        (self._waiting, best.waiting), self.score = (best.waiting, None), best.score
        if self._waiting is None:
            self._end(best.value)
        else:
            self.status, self.result = "yielded", best.value

    async def _advance_natively(self, value: object, transition: Transition) -> None:
        agent = self._agent
        root = transition.new_inner_path()
        if self._scope is None:
            caller = agent.caller(transition.session, transition.caller.meter)
            self._scope = NativeScope(transition.session, caller, root)
        self._scope.begin(root)
        with entered(self._scope):
            if not agent.is_generator:
                self._end(await agent.call(*self._args, **self._kwargs))
            else:
                if self._generator is None:
                    self._generator = agent.call(*self._args, **self._kwargs)
                try:
                    self.result = await self._generator.asend(value)
                except StopAsyncIteration:
                    self._end(self.result)
                else:
                    self.status = "yielded"
        self.score = self._scope.score

    def _end(self, result: T | None) -> None:
        self.status = "ended"
        if not self._agent.is_generator:
            self.result = result


class _Step(Operation[Any]):
    """`next` or `resume`."""

    __slots__ = ("_take", "_value", "child", "name")

    sleeps = True

    def __init__(self, child: Child[Any], value: object, *, take: bool) -> None:
        self.child = child
        self._value = value
        self._take = take
        self.name = None

    async def perform(self, transition: Transition) -> Any:
        child = self.child
        if not self._take:
            child.require_running()
            if child.status == "new" or child.has_result:
                raise HiveError(
                    f"{child!r} is not waiting for a value: await next() first, then resume() answers its yield"
                )
            await child.advance(self._value, transition)
            return None
        if not child.has_result:
            child.require_running()
            await child.advance(None, transition)
            if not child.has_result:
                child.require_running()
        return child.take()

    def __fork__(self, memo: Memo) -> _Step:
        return _Step(copy(self.child, memo), copy(self._value, memo), take=self._take)


class _Finish(Operation[Any]):
    """Awaiting a child: runs it to its end."""

    __slots__ = ("child", "name")

    sleeps = True

    def __init__(self, child: Child[Any]) -> None:
        self.child = child
        self.name = None

    async def perform(self, transition: Transition) -> Any:
        child = self.child
        while child.status != "ended":
            await child.advance(None, transition)
        return child.take()

    def __fork__(self, memo: Memo) -> _Finish:
        return _Finish(copy(self.child, memo))
