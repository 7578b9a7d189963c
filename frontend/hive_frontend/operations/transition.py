"""A transition: one firing of a state, while its operation is performed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, NamedTuple, Protocol

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import Client, OnText, Request
from hive_frontend.client.dialogue import Dialogue
from hive_frontend.client.reply import Reply
from hive_frontend.operation import Operation, Surroundings
from hive_frontend.operations.budget import Meter
from hive_frontend.operations.identity import LongPath, Path
from hive_frontend.operations.model_call import ModelCall
from hive_frontend.operations.tool_threads import ToolThreads

Shown = list[str]
"""A value as text, and its fingerprint."""
Asked = Mapping[str, Shown | Mapping[str, Shown]]
"""Each thing that an answer depends on, by name; code by the names of its parts."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who performs operations: an agent, with its settings."""

    agent: str
    meter: Meter
    client: Client | None = None
    """Whom it asks instead of the session's model."""
    model: str | None = None
    """Name of the model, or of the adapter, that it asks for."""
    timeout_s: float | None = None
    attempts: int | None = None

    def fork(self) -> Caller:
        """The same for another branch, whose spending is its own from here on."""
        return replace(self, meter=self.meter.fork())


class Key(NamedTuple):
    """What identifies an operation within a run: one of a transition's parts, in order of the source."""

    state: str
    firing: int
    part: str
    """Numbers of the part of a gather, and of a gather within it; empty outside one."""


@dataclass(slots=True)
class Kept:
    """What a journal wants to know of a transition, or of a part of it."""

    asked: Asked | None = None
    """What the operation asks; None as long as nobody wants to know."""
    held: Callable[[], Mapping[str, str]] | None = None
    """Says what the agent holds, by fingerprints of its variables; None of an ordinary coroutine."""
    changed: list[str] = field(default_factory=list)
    """Which of it functions have changed that were called; of all parts together."""
    apart: Sequence[Any] = ()
    """Objects that are not the agent's own alone."""
    code: Sequence[CodeType] = ()
    """The code of the agent, and of helpers that it is in."""


class SessionContract(Surroundings, Protocol):
    """What operations need of a session."""

    @property
    def seed(self) -> int: ...
    @property
    def meter(self) -> Meter: ...
    @property
    def threads(self) -> ToolThreads: ...

    def client_of(self, caller: Caller, /) -> Client:
        """Whom a caller asks."""

    async def call(self, call: ModelCall[Any], transition: Transition, /) -> Reply:
        """Ask the model."""

    def call_now(self, call: ModelCall[Any], transition: Transition, /) -> Reply | None:
        """The model's answer if nothing has to be waited for; None and no effect otherwise."""

    async def make(
        self,
        call: ModelCall[CachedMessage],
        parents: Sequence[CachedMessage],
        send: Callable[[Client, Request, OnText | None], Awaitable[CachedMessage]],
        transition: Transition,
        /,
    ) -> CachedMessage:
        """Have the model's server make a message that sees `parents`."""

    async def journaled(
        self, operation: Operation[Any], transition: Transition, call: Callable[[], Awaitable[Any]], /
    ) -> Any:
        """Call a function for an operation, unless the journal has its result already."""

    def asked(self, operation: Operation[Any], transition: Transition, /) -> Asked:
        """What an operation asks, as it was when this was first wanted."""

    def recall_error(self, operation: Operation[Any], transition: Transition, /) -> BaseException | None:
        """What the journal says that an operation raised."""

    def keep_error(self, operation: Operation[Any], transition: Transition, error: BaseException, /) -> None:
        """Keep in the journal what an operation raised."""


class Best(Protocol):
    """The best state that a search of another agent came to."""

    waiting: Any
    """Where that agent goes on from; None if it has returned."""
    score: float | None
    value: Any


class RunContract(Protocol):
    """What operations need of a run: searches of other agents."""

    def ends(self, error: BaseException, /) -> bool:
        """Whether an error ends the run, and is none of the agents' business."""

    async def search_new(
        self, agent: Any, arguments: dict[str, Any], caller: Caller, transition: Transition, /
    ) -> Best:
        """Run another agent from its beginning, as part of a transition."""

    async def search_on(
        self,
        agent: Any,
        waiting: Any,
        value: Any,
        score: float | None,
        caller: Caller,
        transition: Transition,
        /,
    ) -> Best:
        """Run another agent on from a `yield`, as part of a transition."""


class Transition:
    """Where an operation is performed: for which state, for which of its firings, by whom."""

    __slots__ = (
        "_inner",
        "answers",
        "caller",
        "firing",
        "kept",
        "long",
        "name",
        "origin",
        "parts",
        "path",
        "replies",
        "run",
        "session",
        "state",
    )

    def __init__(
        self,
        session: SessionContract,
        caller: Caller,
        path: Path,
        state: str,
        firing: int,
        run: RunContract | None = None,
        parts: tuple[int, ...] = (),
        name: str | None = None,
        long: LongPath | None = None,
    ) -> None:
        self.session = session
        self.caller = caller
        self.path = path
        """The path of the state that is fired."""
        self.state = state
        """Its id."""
        self.firing = firing
        self.run = run
        """The run whose searches it belongs to; None if the awaiting code is an ordinary coroutine."""
        self.parts = parts
        """Which part of a gather is performed, and which part of a gather within that; empty outside one."""
        self.name = name
        """What the gather is called whose part is performed."""
        self.long = long
        """What seeds derive from where the path is a long one."""
        self.origin: object = None
        """The state that is fired; None if the awaiting code is an ordinary coroutine."""
        self.kept: Kept | None = None
        """What a journal wants to know; None where nobody keeps answers."""
        self.replies: Sequence[Reply] = ()
        """What the model answered in this transition."""
        self.answers: Sequence[tuple[Dialogue, Reply]] = ()
        """Answers to dialogues that are kept until all parts of a gather are done."""
        self._inner = 0

    def of_part(self, part: int, name: str | None) -> Transition:
        """The same transition, for one part of a gather called `name`."""
        inner = Transition(
            self.session,
            self.caller,
            self.path,
            self.state,
            self.firing,
            self.run,
            (*self.parts, part),
            name,
            self.long,
        )
        inner.origin = self.origin
        if self.kept is not None:
            inner.kept = replace(self.kept, asked=None)
        return inner

    @property
    def part(self) -> str:
        """The numbers of the part in one word."""
        return ".".join(map(str, self.parts)) if self.parts else ""

    @property
    def key(self) -> Key:
        return Key(self.state, self.firing, self.part)

    def new_inner_path(self) -> Path:
        """The root of the states of an agent that now begins to run as this part of the transition."""
        parts = self.parts or (0,)
        root = (*self.path, self.firing, *(-1 - part for part in parts))
        self._inner += 1
        return root if self._inner == 1 else (*root, -self._inner)
