"""The open sessions, as seen from their requests."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from hive.server.events.event import SessionLine, Sessions

MAX_SESSIONS = 256
"""The least recently active ones are forgotten first: not every program ends its session."""

SHOWN_SESSIONS = 32
MAX_AGENTS = 16
"""Agents listed per session."""

MAX_STATES = 4096
"""States counted per session; further ones are ignored."""


@dataclass(slots=True)
class _Session:
    line: SessionLine
    """Without the numbers of agents and states."""
    agents: dict[str, None] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)
    """Hashes of state names, because a client may choose long names."""


class SessionTracker:
    """Tracks sessions from their first request to their end; bounded, since names come from untrusted requests."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """Least recently active first."""
        self.ended = 0

    def arrived(self, name: str | None, agent: str, state: str | None) -> None:
        """Count an accepted request."""
        if name is None:
            return
        now = self._clock()
        session = self._sessions.setdefault(name, _Session(SessionLine(name, began=now)))
        line = session.line
        line.last_active = now
        line.requests += 1
        line.running += 1
        if len(session.agents) < MAX_AGENTS:
            session.agents[agent] = None
        if state is not None:
            line.state = state
            if len(session.states) < MAX_STATES:
                session.states.add(hash(state))
        self._sessions.move_to_end(name)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def left(self, name: str | None, *, generated: int, replayed: int) -> None:
        """Count a request that has left, unless its session has ended."""
        if name is None or name not in self._sessions:
            return
        line = self._sessions[name].line
        line.last_active = self._clock()
        # A session that was forgotten and came back has running requests that were not counted here.
        line.running = max(0, line.running - 1)
        line.tokens_generated += generated
        line.tokens_replayed += replayed
        self._sessions.move_to_end(name)

    def end(self, name: str) -> None:
        """Remove a session that its program has ended."""
        if self._sessions.pop(name, None) is not None:
            self.ended += 1

    def event(self) -> Sessions:
        """Return the current snapshot."""
        lines = [
            msgspec.structs.replace(
                session.line,
                agents=list(session.agents),
                states=len(session.states),
                began=round(session.line.began, 1),
                last_active=round(session.line.last_active, 1),
            )
            for session in islice(reversed(self._sessions.values()), SHOWN_SESSIONS)
        ]
        return Sessions(sessions=lines, omitted=len(self._sessions) - len(lines), ended=self.ended)
