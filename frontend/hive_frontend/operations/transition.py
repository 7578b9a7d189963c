"""A transition: one firing of a state, while its operation is performed; and what it needs of session and run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, NamedTuple, Protocol

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import Client, OnText, Request
from hive_frontend.client.dialogue import Dialogue
from hive_frontend.client.reply import Reply
from hive_frontend.operation import Environment, Operation
from hive_frontend.operations.budget import Meter
from hive_frontend.operations.identity import LongPath, Path
from hive_frontend.operations.model_call import ModelCall
from hive_frontend.operations.tool_threads import ToolThreads
from hive_frontend.wire import Event

Shown = list[str]
"""A value as text, and its fingerprint."""
Asked = Mapping[str, Shown | Mapping[str, Shown]]
"""The fingerprints of everything that an answer depends on, by name; code by the names of its parts."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The agent that performs operations, with its settings."""

    agent: str
    meter: Meter
    client: Client | None = None
    """Its own client, used instead of the session's model."""
    model: str | None = None
    """Name of the model, or of the adapter, for its calls."""
    timeout_s: float | None = None
    attempts: int | None = None

    def fork(self) -> Caller:
        """Return the caller for another branch, which counts its spending separately from here on."""
        return replace(self, meter=self.meter.fork())


class Key(NamedTuple):
    """Identifies an operation within a run: a part of a transition, numbered in source order."""

    state: str
    firing: int
    part: str
    """Number of the part of a gather, then of nested gathers; empty outside a gather."""

    @property
    def at(self) -> str:
        """The same for people: the id of the state that the transition leads to (but for hashed ids), and the part."""
        return f"{self.state}.{self.firing}/{self.part}" if self.part else f"{self.state}.{self.firing}"


@dataclass(slots=True)
class Kept:
    """What the journal records of a transition, or of a part of it."""

    asked: Asked | None = None
    """What the operation's answer depends on; None until it is needed."""
    held: Callable[[], Mapping[str, str]] | None = None
    """Returns the fingerprints of the agent's variables; None for an ordinary coroutine."""
    changed: list[str] = field(default_factory=list)
    """The agent's variables that called functions have changed, in all parts together."""
    apart: Sequence[Any] = ()
    """Objects that the agent shares with other branches."""
    code: Sequence[CodeType] = ()
    """The code of the agent, and of the helpers that it is running."""


class SessionContract(Environment, Protocol):
    """What operations need of a session."""

    @property
    def seed(self) -> int: ...
    @property
    def meter(self) -> Meter: ...
    @property
    def threads(self) -> ToolThreads: ...

    def client_of(self, caller: Caller, /) -> Client:
        """Return the client for a caller's model calls."""

    async def call(self, call: ModelCall[Any], transition: Transition, /) -> Reply:
        """Call the model."""

    def call_now(self, call: ModelCall[Any], transition: Transition, /) -> Reply | None:
        """Return the model's answer if it is available without waiting; None, without any effect, otherwise."""

    async def make(
        self,
        call: ModelCall[CachedMessage],
        parents: Sequence[CachedMessage],
        send: Callable[[Client, Request, OnText | None], Awaitable[CachedMessage]],
        transition: Transition,
        /,
    ) -> CachedMessage:
        """Make a message with these `parents` at the model's server."""

    def waiting(self, function: Callable[..., Any], event: Event, /) -> AbstractContextManager[None]:
        """Return a context for a call of a tool function, which waits for `event`."""

    async def journaled(
        self, operation: Operation[Any], transition: Transition, call: Callable[[], Awaitable[Any]], /
    ) -> Any:
        """Return the operation's result from the journal, or call the function if the journal does not have it."""

    async def ask(self, question: Operation[Any], transition: Transition, /) -> Any:
        """Return a person's answer to an `AskHuman` as a JSON value. Raises `Suspended` if there is none yet."""

    def idempotency_key(self, transition: Transition, /) -> str:
        """Return the key of a transition, which is the same in a resumed run and in no other transition or run."""

    def asked(self, operation: Operation[Any], transition: Transition, /) -> Asked:
        """Return what the operation's answer depends on, as of the first time that it was needed."""

    def recall_error(self, operation: Operation[Any], transition: Transition, /) -> BaseException | None:
        """Return the error of the operation in the journal; None if there is none."""

    def keep_error(self, operation: Operation[Any], transition: Transition, error: BaseException, /) -> None:
        """Write the error of an operation to the journal."""


class Best(Protocol):
    """The best state that a search of another agent found."""

    waiting: Any
    """The suspended code of that agent, to be resumed; None if it has returned."""
    score: float | None
    value: Any


class RunContract(Protocol):
    """What operations need of a run: searches of other agents."""

    def ends(self, error: BaseException, /) -> bool:
        """Return whether an error ends the run, so that agents do not see it."""

    async def start_search(
        self, agent: Any, arguments: dict[str, Any], caller: Caller, transition: Transition, /
    ) -> Best:
        """Search another agent from its beginning, as part of a transition."""

    async def resume_search(
        self,
        agent: Any,
        waiting: Any,
        value: Any,
        score: float | None,
        caller: Caller,
        transition: Transition,
        /,
    ) -> Best:
        """Search another agent on from a `yield`, as part of a transition."""


@dataclass(slots=True, eq=False)
class Transition:
    """One firing of a state: the context in which an operation is performed."""

    session: SessionContract
    caller: Caller
    path: Path
    """Path of the state that fires."""
    state: str
    """Id of the state that fires."""
    firing: int
    run: RunContract | None = None
    """The run whose searches it belongs to; None if the awaiting code is an ordinary coroutine."""
    parts: tuple[int, ...] = ()
    """Number of the part of a gather, then of nested gathers; empty outside a gather."""
    name: str | None = None
    """Name of the gather to which the part belongs."""
    long: LongPath | None = None
    """Hashes of the path if it is longer than `PIECE`."""
    origin: object = None
    """The state that fires; None if the awaiting code is an ordinary coroutine."""
    kept: Kept | None = None
    """What the journal records; None without a journal."""
    option: int | None = None
    """The option that the supervisor chose; None if it left that to the number of the firing."""
    replies: Sequence[Reply] = ()
    """The model's replies in this transition."""
    results: Sequence[str] = ()
    """The results of the tools that the model called."""
    answers: Sequence[tuple[Dialogue, Reply]] = ()
    """Replies to append to dialogues once all parts of a gather are done."""
    _inner: int = 0

    def of_part(self, part: int, name: str | None) -> Transition:
        """Return the transition for one part of a gather called `name`."""
        kept = None if self.kept is None else replace(self.kept, asked=None)
        same = (self.session, self.caller, self.path, self.state, self.firing, self.run)
        return Transition(*same, (*self.parts, part), name, self.long, self.origin, kept)

    @property
    def part(self) -> str:
        """The numbers of the part as text, such as `2.0`."""
        return ".".join(map(str, self.parts)) if self.parts else ""

    @property
    def key(self) -> Key:
        return Key(self.state, self.firing, self.part)

    def new_inner_path(self) -> Path:
        """Return the root path for an agent that begins to run in this part of the transition."""
        parts = self.parts or (0,)
        root = (*self.path, self.firing, *(-1 - part for part in parts))
        self._inner += 1
        return root if self._inner == 1 else (*root, -self._inner)
