"""Agents and sessions as the scheduler sees them.

Names come from untrusted requests, so everything here is bounded: agents past the limit are counted together
under :data:`OTHER`, and the oldest idle sessions are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hive.agents.window import ActivityWindow, WindowSettings

OTHER = "other"
"""Name under which agents past the limit, and requests without an agent, are counted."""


@dataclass(slots=True)
class AgentProfile:
    """What one agent asked for and got, in requests and tokens."""

    name: str
    description: str = ""
    registered: bool = False
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the radix cache."""
    tokens_generated: int = 0
    """Output tokens that the model computed."""
    tokens_replayed: int = 0
    """Output tokens served by the Logits Cache."""


@dataclass(slots=True)
class Session:
    """One run of a program."""

    id: str
    requests: int = 0


class AgentRegistry:
    """Agents and sessions by name, both bounded."""

    def __init__(
        self, max_agents: int, max_sessions: int = 65536, window: WindowSettings | None = None
    ) -> None:
        self.window = ActivityWindow(window or WindowSettings())
        self._max_agents = max_agents
        self._max_sessions = max_sessions
        self._agents: dict[str, AgentProfile] = {}
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self.sessions_ended = 0
        self.requests = 0
        """Requests that arrived so far: the clock of the waiting queue."""

    def register(self, name: str, description: str = "", session: str | None = None) -> AgentProfile:
        """Announce an agent (again): a program's first message to the server."""
        profile = self.profile(name)
        if session is not None:
            self._session(session)
        if profile.name == name:
            profile.registered = True
            profile.description = description or profile.description
        return profile

    def profile(self, name: str | None) -> AgentProfile:
        """The profile that requests of ``name`` are counted in."""
        name = name or OTHER
        known = self._agents.get(name)
        if known is None:
            if len(self._agents) >= self._max_agents:
                name = OTHER
            known = self._agents.setdefault(name, AgentProfile(name))
        return known

    def arrived(self, agent: str | None, session: str | None, prompt_tokens: int) -> None:
        """Count a request that was accepted."""
        self.requests += 1
        profile = self.profile(agent)
        profile.requests += 1
        profile.prompt_tokens += prompt_tokens
        self.window.arrived(profile.name, prompt_tokens)
        if session is not None:
            self._session(session).requests += 1

    def place(self, agent: str | None, number: int, max_passes: int) -> tuple[int, float, int]:
        """Sort key in a waiting queue by contribution: agents of higher score first, and equals as they are.

        Args:
            agent: whose request it is.
            number: :attr:`requests` as it arrived.
            max_passes: a request that so many others arrived after is as urgent as can be, and nothing starves.
        """
        if self.requests - number >= max_passes:
            return (0, 0.0, number)
        return (1, -self.window.score(self.profile(agent).name), 0)

    def left(self, agent: str | None, *, cached_tokens: int, generated: int, replayed: int) -> None:
        """Count a request that ended, however it ended."""
        profile = self.profile(agent)
        profile.cached_tokens += cached_tokens
        profile.tokens_generated += generated
        profile.tokens_replayed += replayed
        self.window.left(profile.name, cached_tokens, generated + replayed)

    def reused(self, agent: str | None, producers: Mapping[str, int]) -> None:
        """Count KV tokens that a request found, by the agent that had computed them."""
        self.window.reused(self.profile(agent).name, producers)

    def _session(self, session: str) -> Session:
        """A session by its name, now the most recently used."""
        known = self._sessions.setdefault(session, Session(session))
        self._sessions.move_to_end(session)
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)
        return known

    def end_session(self, session: str) -> int | None:
        """Forget a session; the number of its requests, or None if it is not known."""
        known = self._sessions.pop(session, None)
        if known is None:
            return None
        self.sessions_ended += 1
        return known.requests

    def summary(self) -> dict[str, Any]:
        """Agents, busiest first, with their scores as of the last round; sessions; and what agents share.

        ``edges_dropped`` counts reuses since start that ``sharing`` had no room for.
        """
        agents = sorted(self._agents.values(), key=lambda profile: (-profile.requests, profile.name))
        scores = self.window.scores
        return {
            "agents": [
                {
                    **asdict(profile),
                    "contribution": asdict(scores[profile.name]) if profile.name in scores else None,
                }
                for profile in agents
            ],
            "sessions": {"active": len(self._sessions), "ended": self.sessions_ended},
            "rounds": self.window.round,
            "sharing": self.window.edges(),
            "edges_dropped": self.window.edges_dropped,
        }
