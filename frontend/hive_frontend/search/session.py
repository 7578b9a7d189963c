"""A session: one run of a program against one model, with its identity, its seed and its bill."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

from hive_frontend import telemetry
from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import Client, Completion, OnText, Request
from hive_frontend.client.http.client import as_client
from hive_frontend.client.reply import Reply
from hive_frontend.errors import HiveError, JournalError, NoModelError
from hive_frontend.operation import Operation, enter, leave
from hive_frontend.operations.budget import Budget, Meter
from hive_frontend.operations.identity import Path, call_seed
from hive_frontend.operations.model_call import ModelCall
from hive_frontend.operations.native import NativeScope
from hive_frontend.operations.tool_threads import ToolThreads
from hive_frontend.operations.transition import Asked, Caller, Kept, Transition
from hive_frontend.search.asked import asked_by, is_remade
from hive_frontend.search.events import Piece
from hive_frontend.search.journal import Journal
from hive_frontend.search.totals import Bills, Totals
from hive_frontend.wire import check_name

logger = logging.getLogger(__name__)

_GOODBYE_S = 10.0
"""Seconds that a server has to take note of the end of a session."""


class _Answered(Protocol):
    """What a call that was answered cost."""

    @property
    def tokens_generated(self) -> int: ...
    @property
    def tokens_replayed(self) -> int: ...
    @property
    def finish_reason(self) -> str | None: ...


T = TypeVar("T")
A = TypeVar("A", bound=_Answered)
Send = Callable[[Client, Request, OnText | None], Awaitable[A]]
"""How a request is sent to a model."""


class Session:
    """Gives agents a model to talk to.

        async with Session("http://localhost:30000", seed=1) as session:
            answer = await my_agent("...")     # the agent as an ordinary coroutine, no search
        print(session.totals)

    `model` is a `Client` or the URL of a server; without one, every agent that makes calls must have a model
    of its own. A client that the session made from a URL is closed with the session; one that it was given
    stays open. Without a `seed` one is drawn; `session.seed` tells which. `budget` bounds what all agents
    spend together, `max_concurrency` the requests that are under way at once.
    """

    def __init__(
        self,
        model: Client | str | None,
        *,
        seed: int | None = None,
        budget: Budget | None = None,
        journal: Journal | None = None,
        on_piece: Callable[[Piece], object] | None = None,
        max_concurrency: int = 64,
    ) -> None:
        if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, int) or max_concurrency < 1:
            raise ValueError(f"max_concurrency must be an integer of at least 1, not {max_concurrency!r}")
        self._client = None if model is None else as_client(model)
        self._owns_client = isinstance(model, str)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise TypeError(f"seed must be an integer, not {seed!r}")
        self.id = f"s-{secrets.token_hex(8)}"
        self.seed = secrets.randbits(32) if seed is None else seed
        self._bills = Bills()
        self._wall_s = 0.0
        self.meter = Meter(budget or Budget(), "the run")
        self._journal = journal
        self.keeps_answers = journal is not None
        """Whether there is a journal."""
        self._on_piece = on_piece
        self.threads = ToolThreads()
        """Where tools run that block."""
        self._turns = asyncio.Semaphore(max_concurrency)
        self._started: float | None = None
        self._roots = 0
        self._registrations: dict[tuple[Client, str], asyncio.Task[None] | None] = {}
        """Who is known to whom; None where nothing had to be waited for."""
        self._ended: set[str] = set()
        """Sessions of the run that is gone on with."""

    async def __aenter__(self) -> Session:
        if self._started is not None:
            raise HiveError("a session can be entered once; make a new Session for another run")
        self._started = time.monotonic()
        self._token = enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self._token)
        self._wall_s = self.elapsed
        try:
            clients = dict.fromkeys(client for client, _ in self._registrations)
            await self._give_up_registrations()
            for client in clients:
                await self._say_goodbye(client)
        finally:
            self.threads.close()
            if self._owns_client and self._client is not None:
                await self._client.aclose()

    async def _give_up_registrations(self) -> None:
        under_way = [task for task in self._registrations.values() if task is not None and not task.done()]
        for task in under_way:
            task.cancel()
        if under_way:
            # Or one of them might come to the server behind the end of the session.
            await asyncio.wait(under_way)

    async def _say_goodbye(self, client: Client) -> None:
        """Tell a model's server that the session is over; a warning if that cannot be done.

        It must not take the place of what the session led to, a result or an error, nor hold it up for long: the
        server forgets idle sessions anyway.
        """
        limit = asyncio.timeout(_GOODBYE_S)
        try:
            async with limit:
                await client.end_session(self.id)
        except Exception as problem:
            why = f"no answer within {_GOODBYE_S:g} s" if limit.expired() else str(problem) or repr(problem)
            logger.warning("the server could not be told that session %s ended: %s", self.id, why)

    @property
    def elapsed(self) -> float:
        """Seconds since the session was entered."""
        return 0.0 if self._started is None else time.monotonic() - self._started

    @property
    def totals(self) -> Totals:
        """Requests and tokens so far, per agent too; the wall time once the session is over."""
        return self._bills.totals(self._wall_s)

    @property
    def client(self) -> Client | None:
        """The session's model."""
        return self._client

    def new_root(self) -> Path:
        """The path of the next top-level run of an agent in this session."""
        self._roots += 1
        return (self._roots - 1,)

    async def perform(self, operation: Operation[T], /) -> T:
        """Perform an operation that is awaited in the session but in no agent."""
        return await NativeScope(self, Caller("main", self.meter), self.new_root()).perform(operation)

    # Model calls

    async def call(self, call: ModelCall[Any], transition: Transition) -> Reply:
        """Ask the model."""
        agent = call.agent or transition.caller.agent
        if (known := self._recall(call, transition)) is not None:
            return self._bills.count(known, agent)
        done = await self._ask(call, transition, _complete)
        return self._keep(done, agent, call, transition)

    async def make(
        self,
        call: ModelCall[CachedMessage],
        parents: Sequence[CachedMessage],
        send: Send[CachedMessage],
        transition: Transition,
    ) -> CachedMessage:
        """Have the model's server make a message, and keep it. Counts as a call, whether or not it generates."""
        agent = call.agent or transition.caller.agent
        journal = self._journal
        asked = self.asked(call, transition)
        message = None if journal is None else journal.message(transition.key, asked)
        if message is not None:
            transition.caller.meter.recall(message.reply)
            self._ended.add(message.session)
        else:
            self._admit_offline(transition)
            self._check_alive(parents)
            message = await self._ask(call, transition, send)
            if journal is not None:
                journal.add_message(transition.key, asked, message)
            transition.caller.meter.charge(message.reply)
        self._bills.count(message.reply, agent)
        return message

    def _check_alive(self, parents: Sequence[CachedMessage]) -> None:
        """`JournalError` if one of `parents` was made before the run was interrupted."""
        for parent in parents:
            if parent.session in self._ended:
                raise JournalError(
                    f"{parent!r} is unknown: it was made before the run was interrupted, and messages end with "
                    "their session. A run that uses them cannot be gone on with; give another file to begin anew"
                )

    async def _ask(self, call: ModelCall[Any], transition: Transition, send: Send[A]) -> A:
        """Send a request for a call, as its budget and its time allow."""
        caller = transition.caller
        client = self.client_of(caller)
        meter = caller.meter
        if not meter.limited:
            async with self._turns:
                return await self._send(client, call, transition, send)
        meter.check()
        async with meter.in_time(), self._turns:
            # Looked at again: others have spent while it waited for its turn.
            meter.admit()
            return await self._send(client, call, transition, send)

    async def _send(self, client: Client, call: ModelCall[Any], transition: Transition, send: Send[A]) -> A:
        agent = call.agent or transition.caller.agent
        if (client, agent) in self._registrations:
            registration = self._registrations[client, agent]
        else:
            registration = self._register(client, agent)
        if registration is not None and not registration.done():
            # Shielded: a cancelled branch must not take away the registration that others wait for.
            await asyncio.shield(registration)
        request = self._request(call, transition)
        if not telemetry.active():
            return await send(client, request, self._listener(call, transition, agent))
        with telemetry.span(
            "request",
            request.name or agent,
            agent=agent,
            session=self.id,
            state=request.state,
            sample=request.sample,
            model=request.model,
        ) as span:
            done = await send(client, request, self._listener(call, transition, agent))
            span.set(
                tokens_generated=done.tokens_generated,
                tokens_replayed=done.tokens_replayed,
                finish_reason=done.finish_reason,
            )
        return done

    def call_now(self, call: ModelCall[Any], transition: Transition) -> Reply | None:
        """The model's answer if nothing has to be waited for; None and no effect otherwise."""
        caller = transition.caller
        agent = call.agent or caller.agent
        if self._journal is not None and (known := self._recall(call, transition)) is not None:
            return self._bills.count(known, agent)
        client = caller.client or self._client
        if client is None or not client.answers_now or self._on_piece is not None:
            return None
        if (client, agent) not in self._registrations:
            if not client.register_now(check_name("agent", agent), self.id):
                return None
            self._registrations[client, agent] = None
        # Counted when it is known whether the call is made here; looked at before, or an answer would be lost.
        meter = caller.meter
        if meter.limited:
            meter.check()
        try:
            done = client.answer_now(self._request(call, transition))
        except Exception:
            meter.admit()
            raise
        if done is None:
            return None
        if meter.limited:
            meter.admit()
        return self._keep(done, agent, call, transition)

    def client_of(self, caller: Caller) -> Client:
        """Whom a caller asks; `NoModelError` if nobody said."""
        client = caller.client or self._client
        if client is None:
            raise NoModelError(
                f"agent {caller.agent!r} needs a model: give model=..., a Client or the URL of a server"
            )
        return client

    def _request(self, call: ModelCall[Any], transition: Transition) -> Request:
        caller = transition.caller
        part = transition.part
        firing = transition.firing
        # All firings of a state share one base seed, and the number of the sample tells them apart: so the
        # server knows the next sample before it is asked for. Calls that number their samples themselves may
        # give the same number twice and mean two samples, so each firing has a base seed of its own.
        own = None if call.sample is None else firing
        state, long = transition.state, transition.long
        return Request(
            call.messages,
            call.sampling,
            call_seed(self.seed, transition.path, part or "0", own)
            if long is None
            else long.call_seed(part or "0", own),
            call.agent or caller.agent,
            self.id,
            f"{state}/{part}" if part else state,
            firing if call.sample is None else call.sample,
            call.prompt,
            call.name or transition.name,
            caller.model,
            caller.timeout_s,
            caller.attempts,
        )

    def _recall(self, call: ModelCall[Any], transition: Transition) -> Reply | None:
        journal = self._journal
        if journal is None:
            return None
        known = journal.reply(transition.key, self.asked(call, transition))
        if known is not None:
            transition.caller.meter.recall(known)
        else:
            self._admit_offline(transition)
        return known

    def _admit_offline(self, transition: Transition) -> None:
        """Where nobody may be asked: what a call raises that the journal has no answer to."""
        journal = self._journal
        if journal is not None and journal.offline:
            # Perhaps the recorded run did not get an answer either.
            transition.caller.meter.check()
            raise journal.missing(transition.key)

    def _keep(self, done: Completion, agent: str, call: ModelCall[Any], transition: Transition) -> Reply:
        reply = done.reply
        if self._journal is not None:
            self._journal.add_reply(transition.key, self.asked(call, transition), reply)
        if transition.caller.meter.limited:
            transition.caller.meter.charge(reply)
        return self._bills.count(reply, agent)

    def _listener(self, call: ModelCall[Any], transition: Transition, agent: str) -> OnText | None:
        on_piece = self._on_piece
        if on_piece is None:
            return None
        state, firing, part = transition.key
        label = None if call.dialogue is None else call.dialogue.label

        def listen(text: str) -> None:
            on_piece(Piece(text, state, firing, part, agent, call.name or transition.name, label))

        return listen

    def _register(self, client: Client, agent: str) -> asyncio.Task[None]:
        """Register `agent` before its first call; calls that come meanwhile wait for the same registration."""
        key = client, check_name("agent", agent)
        registration = asyncio.ensure_future(client.register(agent, self.id))
        self._registrations[key] = registration
        registration.add_done_callback(lambda task: self._forget_if_failed(task, key))
        return registration

    def _forget_if_failed(self, task: asyncio.Task[None], key: tuple[Client, str]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._registrations.pop(key, None)

    # Everything else that comes from outside

    async def journaled(
        self, operation: Operation[Any], transition: Transition, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Call a function for an operation, unless the journal has its result already."""
        journal = self._journal
        if journal is None:
            return await call()
        key = transition.key
        # Now: what it is given may be something else when it has been called.
        asked = self.asked(operation, transition)
        if key in journal:
            return journal.result(key, asked)
        if journal.offline:
            raise journal.missing(key)
        kept = transition.kept
        if kept is None or kept.held is None:
            result = await call()
            journal.add_result(key, asked, result)
            return result
        before = kept.held()
        try:
            result = await call()
        finally:
            after = kept.held()
            if changed := [name for name in after if after[name] != before[name]]:
                kept.changed += changed
                logger.warning(
                    "a tool changed %s, which a run that goes on from %s would not have: let it return what is "
                    "new, or give it redo=True if it may be called again",
                    " and ".join(changed),
                    journal.path,
                )
        journal.add_result(key, asked, result, kept.changed)
        return result

    def asked(self, operation: Operation[Any], transition: Transition) -> Asked:
        """What an operation asks, as it was when this was first wanted; nothing where there is no journal."""
        if self._journal is None:
            return {}
        kept = transition.kept
        if kept is None:
            kept = transition.kept = Kept()
        if kept.asked is None:
            kept.asked = asked_by(operation, transition)
        return kept.asked

    def recall_error(self, operation: Operation[Any], transition: Transition) -> BaseException | None:
        """What the journal says that the operation of a transition raised; None if nothing."""
        journal = self._journal
        if journal is None or not journal.has_error(transition.key):
            return None
        return journal.error(transition.key, self.asked(operation, transition))

    def keep_error(self, operation: Operation[Any], transition: Transition, error: BaseException) -> None:
        """Keep in the journal what an operation raised, after the agent has dealt with it."""
        # What is made again raises it again, and what it did before that is done again.
        if self._journal is not None and not is_remade(operation):
            asked = self.asked(operation, transition)
            changed = transition.kept.changed if transition.kept else ()
            self._journal.add_error(transition.key, asked, error, changed)

    def check_code(self, agent: str, code: str) -> None:
        """Hold the code of an agent against that of the run that is gone on with."""
        if self._journal is not None:
            self._journal.check_agent(agent, code)


def _complete(client: Client, request: Request, on_text: OnText | None) -> Awaitable[Completion]:
    return client.complete(request, on_text)
