"""A session: one run of a program against one model, with its id, its seed and its usage."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Any, TypeVar

from hive_frontend import telemetry
from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import Client, Completion, OnText, Request
from hive_frontend.client.http.client import as_client
from hive_frontend.client.reply import Reply
from hive_frontend.client.request_span import request_span, set_answer
from hive_frontend.client.tool_text import answer_now, complete
from hive_frontend.errors import HiveError, JournalError, NobodyToAsk, NoModelError, Suspended
from hive_frontend.operation import Operation, enter, leave
from hive_frontend.operations.budget import Budget, Meter
from hive_frontend.operations.choice import AskHuman
from hive_frontend.operations.identity import Path, call_seed
from hive_frontend.operations.model_call import ModelCall
from hive_frontend.operations.native import NativeScope
from hive_frontend.operations.tool_threads import ToolThreads
from hive_frontend.operations.transition import Asked, Caller, Kept, Transition
from hive_frontend.runs.questions import Handler, OnQuestion, Question
from hive_frontend.search.asked import asked_by, is_repeated
from hive_frontend.search.events import Piece
from hive_frontend.search.journal import Journal
from hive_frontend.search.registrations import Registrations
from hive_frontend.search.totals import Answered, Totals, UsageCounters
from hive_frontend.search.waits import Wait, Waits
from hive_frontend.wire import Event

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A", bound=Answered)
Send = Callable[[Client, Request, OnText | None], Awaitable[A]]
"""A function that sends a request to a model."""


class Session:
    """Connects agents to a model.

        async with Session("http://localhost:30000", seed=1) as session:
            answer = await my_agent("...")     # the agent as an ordinary coroutine, no search
        print(session.totals)

    `model` is a `Client` or the URL of a server. With None, every agent that calls a model must have one of its own.
    The session closes a client that it made from a URL; a client that was passed in stays open. If `seed` is None, a
    random one is drawn; `session.seed` has it. `on_question` answers the questions of `ask_human`. `budget` limits what
    all agents spend together, `max_concurrency` the number of requests in flight.
    """

    def __init__(
        self,
        model: Client | str | None,
        *,
        seed: int | None = None,
        budget: Budget | None = None,
        journal: Journal | None = None,
        on_piece: Callable[[Piece], object] | None = None,
        on_question: OnQuestion | None = None,
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
        self._usage = UsageCounters()
        self._wall_s = 0.0
        self.meter = Meter(budget or Budget(), "the run")
        self._journal = journal
        self.keeps_answers = journal is not None
        """Whether there is a journal."""
        self._on_piece = on_piece
        self.threads = ToolThreads()
        """Threads in which blocking tools run."""
        self._waits = Waits(
            lambda expects: self._registrations.hint({"session": self.id, "expects": expects})
        )
        self._request_slots = asyncio.Semaphore(max_concurrency)
        self._started: float | None = None
        self._roots = 0
        self._registrations = Registrations(self.id)
        self._handler = None if on_question is None else Handler(on_question, self.threads)
        self.paused = False
        """Whether the session ends because all its branches wait for people."""
        self._ended: set[str] = set()
        """Ids of the ended sessions in which a resumed run made its messages before."""

    async def __aenter__(self) -> Session:
        if self._started is not None:
            raise HiveError("a session can be entered once only; make a new Session for another run")
        self._started = time.monotonic()
        self._token = enter(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        leave(self._token)
        self._waits.close()
        self._wall_s = self.elapsed
        try:
            await self._registrations.end(paused=self.paused)
        finally:
            await self.threads.aclose()
            if self._owns_client and self._client is not None:
                await self._client.aclose()

    @property
    def elapsed(self) -> float:
        """Seconds since the session was entered."""
        return 0.0 if self._started is None else time.monotonic() - self._started

    @property
    def totals(self) -> Totals:
        """Requests and tokens so far, in total and per agent, and the wall time once the session has ended."""
        return self._usage.totals(self._wall_s)

    @property
    def client(self) -> Client | None:
        """The session's model."""
        return self._client

    def new_root(self) -> Path:
        """Return the path for the next top-level run of an agent in this session."""
        self._roots += 1
        return (self._roots - 1,)

    async def perform(self, operation: Operation[T], /) -> T:
        """Perform an operation that is awaited in the session but outside any agent."""
        return await NativeScope(self, Caller("main", self.meter), self.new_root()).perform(operation)

    # Model calls

    async def call(self, call: ModelCall[Any], transition: Transition) -> Reply:
        """Call the model, or take its answer from the journal."""
        agent = call.agent or transition.caller.agent
        if (known := self._recall(call, transition)) is not None:
            return self._usage.count(known, agent)
        done = await self._ask(call, transition, complete)
        return self._keep(done, agent, call, transition)

    async def make(
        self,
        call: ModelCall[CachedMessage],
        parents: Sequence[CachedMessage],
        send: Send[CachedMessage],
        transition: Transition,
    ) -> CachedMessage:
        """Have the model's server make a message, and store it in the journal. It counts as a call, even if it
        generates nothing."""
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
        self._usage.count(message.reply, agent)
        return message

    def _check_alive(self, parents: Sequence[CachedMessage]) -> None:
        """`JournalError` if one of `parents` was made before the run was interrupted."""
        for parent in parents:
            if parent.session in self._ended:
                raise JournalError(
                    f"{parent!r} does not exist any more: it was made before the run was interrupted, and messages "
                    "end with their session. This run cannot be resumed; give another file to start a new run"
                )

    async def _ask(self, call: ModelCall[Any], transition: Transition, send: Send[A]) -> A:
        """Send the request of a call, within its budget and time limit."""
        caller = transition.caller
        client = self.client_of(caller)
        meter = caller.meter
        with self._waits.call():
            if not meter.limited:
                async with self._request_slots:
                    return await self._send(client, call, transition, send)
            meter.check()
            async with meter.in_time(), self._request_slots:
                # Check again: others may have spent the budget while this call waited.
                meter.admit()
                return await self._send(client, call, transition, send)

    async def _send(self, client: Client, call: ModelCall[Any], transition: Transition, send: Send[A]) -> A:
        agent = call.agent or transition.caller.agent
        registration = self._registrations.begin(client, agent)
        if registration is not None and not registration.done():
            # Shielded: a cancelled branch must not cancel the registration that others wait for.
            await asyncio.shield(registration)
        request = self._request(call, transition)
        if not telemetry.active():
            return await send(client, request, self._listener(call, transition, agent))
        with request_span(client, request) as span:
            done = await send(client, request, self._listener(call, transition, agent))
            set_answer(span, client, done.reply)
        return done

    def call_now(self, call: ModelCall[Any], transition: Transition) -> Reply | None:
        """Return the model's answer if no waiting is needed; otherwise return None, without any effect."""
        caller = transition.caller
        agent = call.agent or caller.agent
        if self._journal is not None and (known := self._recall(call, transition)) is not None:
            return self._usage.count(known, agent)
        client = caller.client or self._client
        if client is None or not client.answers_now or self._on_piece is not None:
            return None
        if not self._registrations.now(client, agent):
            return None
        # Check the budget before the call, so that no answer is lost; count the call only if it is made here.
        meter = caller.meter
        if meter.limited:
            meter.check()
        try:
            done = answer_now(client, self._request(call, transition))
        except Exception:
            meter.admit()
            raise
        if done is None:
            return None
        if meter.limited:
            meter.admit()
        return self._keep(done, agent, call, transition)

    def client_of(self, caller: Caller) -> Client:
        """Return the client that a caller uses.

        Raises:
            NoModelError: if neither the caller nor the session has one.
        """
        client = caller.client or self._client
        if client is None:
            raise NoModelError(
                f"agent {caller.agent!r} needs a model: give the run or the agent model=..., a Client or the URL of a "
                "server"
            )
        return client

    def _request(self, call: ModelCall[Any], transition: Transition) -> Request:
        caller = transition.caller
        part = transition.part
        firing = transition.firing
        # All firings of a state share one base seed and differ by the sample number, so the server can predict the
        # next sample. A call with an explicit sample number may repeat it in another firing and mean another
        # sample, so each of its firings has a base seed of its own.
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
            call.tools,
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
        """Raise an error in an offline run: the journal has no answer to this call."""
        journal = self._journal
        if journal is not None and journal.offline:
            # The recorded run may have spent its budget here; it then has no answer either.
            transition.caller.meter.check()
            raise journal.missing(transition.key)

    def _keep(self, done: Completion, agent: str, call: ModelCall[Any], transition: Transition) -> Reply:
        reply = done.reply
        if self._journal is not None:
            self._journal.add_reply(transition.key, self.asked(call, transition), reply)
        if transition.caller.meter.limited:
            transition.caller.meter.charge(reply)
        return self._usage.count(reply, agent)

    def _listener(self, call: ModelCall[Any], transition: Transition, agent: str) -> OnText | None:
        on_piece = self._on_piece
        if on_piece is None:
            return None
        state, firing, part = transition.key
        label = None if call.dialogue is None else call.dialogue.label

        def listen(text: str) -> None:
            on_piece(Piece(text, state, firing, part, agent, call.name or transition.name, label))

        return listen

    # Hints to servers

    def waiting(self, function: Callable[..., Any], event: Event) -> AbstractContextManager[None]:
        return Wait(self._waits, function, event)

    def discard(self, state: str, sample: int) -> None:
        """Tell the servers that no branch continues an answer."""
        self._registrations.hint({"session": self.id, "state": state, "sample": sample, "discard": True})

    # Other answers from outside the run

    async def journaled(
        self, operation: Operation[Any], transition: Transition, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Call the function of an operation, unless the journal has its result."""
        journal = self._journal
        if journal is None:
            return await call()
        key = transition.key
        # Before the call, because the function may change its arguments.
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
                    "a tool changed %s; a run resumed from %s does not call the tool again and would miss this change: "
                    "return the new value from the tool, or give it rerun=True if it may be called again",
                    " and ".join(changed),
                    journal.name,
                )
        journal.add_result(key, asked, result, kept.changed)
        return result

    async def ask(self, question: Operation[Any], transition: Transition) -> Any:
        """Return a person's answer as a JSON value: from the journal, from the handler, or else in a later run."""
        assert isinstance(question, AskHuman)
        key = transition.key
        journal, handler = self._journal, self._handler
        asked = self.asked(question, transition)
        schema = json.loads(question.schema)
        put = Question(
            question.text, key.at, transition.caller.agent, question.choices, schema, question.adapter
        )
        if journal is not None:
            if (found := journal.answer(key, asked)) is not None:
                return journal.checked(found, put)
            if journal.offline:
                raise journal.missing(key)
        if handler is not None:
            with self.waiting(handler.function, "human"):
                answer = await handler.answer(put)
            if answer is not None:
                checked = put.parse(answer)
                if journal is not None:
                    journal.add_answer(key, asked, put, checked)
                return checked
        if journal is None:
            raise NobodyToAsk(
                f"nobody can answer {put.text!r}: give the run on_question=..., or a store=... in which it waits"
            )
        if (found := journal.ask(key, asked, put)) is None:
            raise Suspended([put])
        return journal.checked(found, put)

    def idempotency_key(self, transition: Transition) -> str:
        """Return the key that a resumed run has again in this transition."""
        run = self.id if self._journal is None else self._journal.run
        return blake2b("|".join([run, *map(str, transition.key)]).encode(), digest_size=16).hexdigest()

    def asked(self, operation: Operation[Any], transition: Transition) -> Asked:
        """Describe the request of an operation, computed on the first call and then kept; empty without a journal."""
        if self._journal is None:
            return {}
        kept = transition.kept
        if kept is None:
            kept = transition.kept = Kept()
        if kept.asked is None:
            kept.asked = asked_by(operation, transition)
        return kept.asked

    def recall_error(self, operation: Operation[Any], transition: Transition) -> BaseException | None:
        """Return the error that the journal has for the operation of a transition, or None."""
        journal = self._journal
        if journal is None or not journal.has_error(transition.key):
            return None
        return journal.error(transition.key, self.asked(operation, transition))

    def keep_error(self, operation: Operation[Any], transition: Transition, error: BaseException) -> None:
        """Store an error of an operation in the journal, after the agent has handled it."""
        # A tool with `rerun=True` is called again and raises the error again.
        if self._journal is not None and not is_repeated(operation):
            asked = self.asked(operation, transition)
            changed = transition.kept.changed if transition.kept else ()
            self._journal.add_error(transition.key, asked, error, changed)

    def check_code(self, agent: str, code: str) -> None:
        """Check that the code of an agent is that of the resumed run."""
        if self._journal is not None:
            self._journal.check_agent(agent, code)
