"""The sessions that are under way, as their requests tell."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from hive.server.events.event import SessionLine, Sessions

MAX_SESSIONS = 256
"""Those that did something least recently are forgotten first: not every program says goodbye."""

SHOWN_SESSIONS = 32
MAX_AGENTS = 16
"""Per session."""

MAX_STATES = 4096
"""Per session; further ones are not counted."""


@dataclass(slots=True)
class _Session:
    began: float
    moved: float
    agents: dict[str, None] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)
    """Hashes of their names, which a client may make long."""
    state: str | None = None
    running: int = 0
    requests: int = 0
    tokens_generated: int = 0
    tokens_replayed: int = 0


class SessionBoard:
    """Follows sessions from their first request to their end; bounded, for names come from untrusted requests."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """Least recently moved first."""
        self.ended = 0

    def arrived(self, name: str | None, agent: str, state: str | None) -> None:
        """Count a request that was accepted."""
        if name is None:
            return
        now = self._clock()
        session = self._sessions.setdefault(name, _Session(began=now, moved=now))
        session.moved = now
        session.requests += 1
        session.running += 1
        if len(session.agents) < MAX_AGENTS:
            session.agents[agent] = None
        if state is not None:
            session.state = state
            if len(session.states) < MAX_STATES:
                session.states.add(hash(state))
        self._sessions.move_to_end(name)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def left(self, name: str | None, *, generated: int, replayed: int) -> None:
        """Count a request that ended; that of a session which is over is nobody's."""
        if name is None or name not in self._sessions:
            return
        session = self._sessions[name]
        session.moved = self._clock()
        # One that was forgotten and came back has requests under way that it does not know of.
        session.running = max(0, session.running - 1)
        session.tokens_generated += generated
        session.tokens_replayed += replayed
        self._sessions.move_to_end(name)

    def end(self, name: str) -> None:
        """A session said goodbye."""
        if self._sessions.pop(name, None) is not None:
            self.ended += 1

    def event(self) -> Sessions:
        """The picture of now."""
        newest = list(reversed(self._sessions))[:SHOWN_SESSIONS]
        lines = []
        for name in newest:
            session = self._sessions[name]
            lines.append(
                SessionLine(
                    name=name,
                    agents=list(session.agents),
                    states=len(session.states),
                    state=session.state,
                    running=session.running,
                    requests=session.requests,
                    tokens_generated=session.tokens_generated,
                    tokens_replayed=session.tokens_replayed,
                    began=round(session.began, 1),
                    moved=round(session.moved, 1),
                )
            )
        return Sessions(sessions=lines, omitted=len(self._sessions) - len(lines), ended=self.ended)
