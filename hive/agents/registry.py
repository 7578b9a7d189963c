"""Agents and sessions as the scheduler sees them.

Names come from untrusted requests, so everything here is bounded: an agent past the limit gets the slot of one that
is over, or is counted under :data:`OTHER` where none is, and the oldest idle sessions are forgotten first.
"""

from __future__ import annotations

import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hive.agents.window import ActivityWindow, WindowSettings

logger = logging.getLogger(__name__)

OTHER = "other"
"""Name under which agents past the limit, forgotten ones, and requests without an agent are counted."""


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

    def add(self, other: AgentProfile) -> None:
        """Take over the counts of another agent."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.tokens_generated += other.tokens_generated
        self.tokens_replayed += other.tokens_replayed


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
        self.max_agents = max_agents
        """Agents beside :data:`OTHER` that have slots, at the most."""
        self._max_sessions = max_sessions
        self._agents: OrderedDict[str, AgentProfile] = OrderedDict()
        """Least recently seen first: by arrivals and registrations, which all ranks see in one order."""
        self._holds: Callable[[str], bool] | None = None
        self._forgotten: Callable[[str], None] | None = None
        self._exhausted_in: int | None = None
        """The last round in which nobody was over; None while there was no such round."""
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self.sessions_ended = 0
        self.requests = 0
        """Requests that arrived so far: the clock of the waiting queue."""

    def reuse_slots(self, holds: Callable[[str], bool], forgotten: Callable[[str], None]) -> None:
        """From now on, agents that are over give up their slots to new ones; before, nobody does.

        Args:
            holds: whether KV of an agent is resident; it then keeps its slot.
            forgotten: called with the name of each agent that has lost its slot, for whoever counts by name; the
                registry counts on under :data:`OTHER`.
        """
        self._holds, self._forgotten = holds, forgotten

    def register(self, name: str, description: str = "", session: str | None = None) -> AgentProfile:
        """Announce an agent (again): a program's first message to the server.  It keeps its slot for good."""
        profile = self._seen(name)
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
            if self._full():
                name = OTHER
            known = self._agents.setdefault(name, AgentProfile(name))
        return known

    def __len__(self) -> int:
        return len(self._agents)

    def busiest(self, count: int) -> list[AgentProfile]:
        """The agents with the most requests, those first."""
        return heapq.nsmallest(
            count, self._agents.values(), key=lambda profile: (-profile.requests, profile.name)
        )

    def is_registered(self, name: str) -> bool:
        """Whether an agent was announced."""
        known = self._agents.get(name)
        return known is not None and known.registered

    def arrived(self, agent: str | None, session: str | None, prompt_tokens: int) -> str:
        """Count a request that was accepted.

        Returns the name that it is counted under until it has left: what else is told of the request goes under that
        name, since its agent may have a slot of its own by then.
        """
        self.requests += 1
        profile = self._seen(agent)
        profile.requests += 1
        profile.prompt_tokens += prompt_tokens
        self.window.arrived(profile.name, prompt_tokens)
        if session is not None:
            self._session(session).requests += 1
        return profile.name

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

    def _seen(self, name: str | None) -> AgentProfile:
        """The profile of an agent that shows itself: one without a slot may take that of one that is over."""
        name = name or OTHER
        if name != OTHER and name not in self._agents and self._full():
            self._free_slot()
        profile = self.profile(name)
        self._agents.move_to_end(profile.name)
        return profile

    def _full(self) -> bool:
        return len(self._agents) - (OTHER in self._agents) >= self.max_agents

    def _free_slot(self) -> None:
        """Forget the agent that was seen least recently among those that are over, if any is."""
        if self._exhausted_in == self.window.round:
            # The window moves on with the round; a search passes all agents, and is too dear for each request.
            return
        over = next((profile for profile in self._agents.values() if self._is_over(profile)), None)
        if over is not None:
            del self._agents[over.name]
            self.profile(OTHER).add(over)
            assert self._forgotten is not None
            self._forgotten(over.name)
            return
        if self._exhausted_in is None:
            logger.warning(
                "Hive: all %d slots for agents (--hive-max-agents) are taken by agents that are registered, active or "
                "hold KV; others are counted together as %r",
                self.max_agents,
                OTHER,
            )
        self._exhausted_in = self.window.round

    def _is_over(self, profile: AgentProfile) -> bool:
        """Whether nothing but its counts is left of an agent that nobody announced."""
        return (
            self._holds is not None
            and profile.name != OTHER
            and not profile.registered
            and not self.window.knows(profile.name)
            and not self._holds(profile.name)
        )

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
