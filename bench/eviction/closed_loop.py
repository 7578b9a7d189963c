"""Sessions side by side: each request arrives some time after the one before it has ended."""

from __future__ import annotations

import heapq
import itertools
import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bench.eviction.schedule import Room
from bench.traces.prefix_tree import PrefixTree
from bench.traces.sessions import Call, Session
from bench.traces.trace import Event, Request, Trace
from hive.server.eviction import hints

_NOTHING = array("q", [0])
"""The output of every request: one token, which no cache keeps. What an answer said is a part of later prompts."""


@dataclass(slots=True)
class Moment:
    """When a request ran, and what its session did then."""

    arrived: float = 0.0
    finished: float = 0.0
    stopped: hints.Event | None = None
    """What the server can tell."""
    then: hints.Event = "end"
    """What the session waited for, as its client knows."""
    away: float = math.inf
    """Seconds until its session's next request; infinite if there is none."""
    hinted: float | None = None
    """What the client says they are: off by a factor whose logarithm has standard deviation 1."""


class ClosedLoop(NamedTuple):
    """What happens, in order; for each request, when."""

    events: Sequence[Event]
    moments: Sequence[Moment]


def trace_of(sessions: Iterable[Session]) -> Trace:
    """The requests of some sessions, without an order: a block is a token."""
    return Trace(
        [
            Request(call.agent, owner.name, call.blocks, _NOTHING)
            for session in sessions
            for owner, call in session.everywhere()
        ],
        [],
    )


def closed_loop(
    sessions: Sequence[Session], trace: Trace, tree: PrefixTree, pool: int, at_once: int, seed: int
) -> ClosedLoop:
    """Run sessions side by side in a pool of so many blocks.

    When one ends, the next one begins; sessions that know when they start do so. Requests that the pool has no room
    for wait, first come first served, and what follows in their session waits with them. A policy changes nothing of
    this. ``trace`` is that of the sessions, ``tree`` is the trace's, and ``seed`` that of the hints' errors. Raises
    `PoolTooSmall`.
    """
    loop = _Loop(sessions, trace, tree, pool).run(at_once)
    random = np.random.default_rng(seed)
    for moment, error in zip(loop.moments, random.lognormal(size=len(loop.moments)).tolist(), strict=True):
        if moment.away < math.inf:
            moment.hinted = moment.away * error
    return loop


class _Chain:
    """Where a session has got to."""

    def __init__(self, session: Session, parent: _Chain | None = None) -> None:
        self.session, self.parent = session, parent
        self.at = -1
        """The call that runs, or was the last one."""
        self.request = -1
        self.ready = 0.0
        self.children = 0
        """Subagents that have not ended."""

    @property
    def call(self) -> Call:
        return self.session.calls[self.at]


class _Loop:
    def __init__(self, sessions: Sequence[Session], trace: Trace, tree: PrefixTree, pool: int) -> None:
        self.room = Room(trace, tree, pool)
        self.moments = [Moment() for _ in trace.requests]
        calls = (call for session in sessions for _, call in session.everywhere())
        self.numbers = {id(call): number for number, call in enumerate(calls)}
        self.waiting_sessions = deque(session for session in sessions if session.starts_s is None)
        self.clock: list[tuple[float, int, str, _Chain]] = []
        self.ticket = itertools.count()
        self.queue: deque[_Chain] = deque()
        self.events: list[Event] = []
        for session in sessions:
            if session.starts_s is not None:
                self.plan(session.starts_s, "arrive", _Chain(session))

    def run(self, at_once: int) -> ClosedLoop:
        for _ in range(at_once):
            self.begin(0.0)
        while self.clock:
            now, _, kind, chain = heapq.heappop(self.clock)
            if kind == "arrive":
                self.arrive(now, chain)
            else:
                self.finish(now, chain)
            while self.queue and self.room.admit(self.queue[0].request):
                started = self.queue.popleft()
                self.events.append(("start", started.request))
                self.plan(now + started.call.service_s, "finish", started)
        return ClosedLoop(self.events, self.moments)

    def plan(self, when: float, kind: str, chain: _Chain) -> None:
        heapq.heappush(self.clock, (when, next(self.ticket), kind, chain))

    def begin(self, now: float) -> None:
        if self.waiting_sessions:
            self.plan(now, "arrive", _Chain(self.waiting_sessions.popleft()))

    def arrive(self, now: float, chain: _Chain) -> None:
        if chain.request >= 0:
            before = self.moments[chain.request]
            before.away = now - before.finished
        chain.at += 1
        chain.request = self.numbers[id(chain.call)]
        self.moments[chain.request].arrived = now
        self.queue.append(chain)

    def finish(self, now: float, chain: _Chain) -> None:
        self.room.leave(chain.request)
        self.events.append(("finish", chain.request))
        moment, calls = self.moments[chain.request], chain.session.calls
        moment.finished, moment.stopped = now, chain.call.stopped
        if chain.at + 1 < len(calls):
            moment.then = calls[chain.at + 1].asks
            chain.ready = now + calls[chain.at + 1].think_s
        else:
            chain.ready = math.inf
        for child in chain.call.children:
            moment.then = "subagent"
            chain.children += 1
            self.plan(now + (child.starts_s or 0.0), "arrive", _Chain(child, chain))
        if not chain.children:
            self.proceed(now, chain)

    def proceed(self, now: float, chain: _Chain) -> None:
        """Go on with a session that waits for no subagent."""
        if chain.ready < math.inf:
            self.plan(max(now, chain.ready), "arrive", chain)
            return
        if chain.session.ends:
            self.events.append(("end", chain.session.name))
        parent = chain.parent
        if parent is None:
            self.begin(now)
            return
        parent.children -= 1
        if not parent.children:
            self.proceed(now, parent)
