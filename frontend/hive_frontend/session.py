"""A session: one run of a program against one model, with its identity, its seed and its bill."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from types import TracebackType

from pydantic import BaseModel, Field

from hive_frontend.call import Gen, Operation
from hive_frontend.client.base import Client, Request
from hive_frontend.client.http import HttpClient
from hive_frontend.errors import HiveError, ModelError
from hive_frontend.identity import Path, call_seed, check_label, state_id
from hive_frontend.reply import Reply
from hive_frontend.scope import NativeScope, entered

logger = logging.getLogger(__name__)


class Usage(BaseModel):
    """Model calls made, and their tokens."""

    requests: int = 0
    tokens_generated: int = 0
    """Tokens that the model computed."""
    tokens_replayed: int = 0
    """Tokens that the server's Logits Cache served instead."""

    def add(self, reply: Reply) -> None:
        """Count one answered call."""
        self.requests += 1
        self.tokens_generated += reply.tokens_generated
        self.tokens_replayed += reply.tokens_replayed


class Totals(Usage):
    """The bill of a session."""

    wall_s: float = 0.0
    agents: dict[str, Usage] = Field(default_factory=dict)
    """The same per agent."""


class Session:
    """Gives agents a model to talk to.

        async with Session("http://localhost:30000", seed=1) as session:
            answer = await my_agent("...")     # the agent as an ordinary coroutine, no search
        print(session.totals)

    `model` is a `Client` or the URL of a server. A client that the session made from a URL is closed with
    the session; one that it was given stays open. Without a `seed` one is drawn; `session.seed` tells which.
    """

    def __init__(self, model: Client | str, *, seed: int | None = None) -> None:
        if isinstance(model, str):
            self._client: Client = HttpClient(model)
        elif isinstance(model, Client):
            self._client = model
        else:
            raise TypeError(
                "model must be a Client or the URL of a server, such as "
                f'"http://localhost:30000", not {type(model).__name__}'
            )
        self._owns_client = isinstance(model, str)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise TypeError(f"seed must be an integer, not {seed!r}")
        self.id = f"s-{secrets.token_hex(8)}"
        self.seed = secrets.randbits(32) if seed is None else seed
        self.totals = Totals()
        self._started: float | None = None
        self._roots = 0
        self._registrations: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Session:
        if self._started is not None:
            raise HiveError("a session can be entered once; make a new Session for another run")
        self._started = time.monotonic()
        self._scope = entered(NativeScope(self, "main"))
        self._scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.__exit__(kind, error, trace)
        self.totals.wall_s = self.elapsed
        for registration in self._registrations.values():
            registration.cancel()
        try:
            if self._registrations:
                await self._client.end_session(self.id)
        except ModelError as problem:
            # The work is done and its results are the caller's; the server forgets idle sessions anyway.
            logger.warning("the server could not be told that session %s ended: %s", self.id, problem)
        finally:
            if self._owns_client:
                await self._client.aclose()

    @property
    def elapsed(self) -> float:
        """Seconds since the session was entered."""
        return 0.0 if self._started is None else time.monotonic() - self._started

    def new_root(self) -> Path:
        """The path of the next top-level run of an agent in this session."""
        self._roots += 1
        return (self._roots - 1,)

    async def perform(self, operation: Operation, *, agent: str, path: Path, firing: int) -> list[Reply]:
        """Make all calls of one transition, concurrently; answers come in the order of the calls.

        The first call that fails cancels the others.
        """
        if isinstance(operation, Gen):
            return [await self._call(operation, agent, path, firing, None, operation.name)]
        tasks = [
            asyncio.ensure_future(self._call(call, agent, path, firing, number, call.name or operation.name))
            for number, call in enumerate(operation.calls)
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _call(
        self, call: Gen, agent: str, path: Path, firing: int, number: int | None, name: str | None
    ) -> Reply:
        agent = call.agent or agent
        await self._register(agent)
        sample = firing if call.sample is None else call.sample
        request = Request(
            messages=call.messages,
            prompt=call.prompt,
            sampling=call.sampling,
            seed=call_seed(self.seed, path, firing, number or 0, sample),
            agent=agent,
            session=self.id,
            state=state_id(path) if number is None else f"{state_id(path)}/{number}",
            sample=sample,
            name=name,
        )
        done = await self._client.complete(request)
        reply = Reply(done.text, done.tokens_generated, done.tokens_replayed, done.finish_reason)
        self.totals.add(reply)
        self.totals.agents.setdefault(agent, Usage()).add(reply)
        return reply

    async def _register(self, agent: str) -> None:
        """Register `agent` before its first call; calls that come meanwhile wait for the same registration."""
        registration = self._registrations.get(agent)
        if registration is None:
            check_label("agent", agent)
            registration = asyncio.ensure_future(self._client.register(agent, self.id))
            self._registrations[agent] = registration
        # Shielded: a cancelled branch must not take away the registration that others wait for.
        await asyncio.shield(registration)
