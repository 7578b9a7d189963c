"""Agents and sessions as the scheduler sees them, under names qualified by tenant (:mod:`hive.server.agents.tenant`).

Names come from untrusted requests, so everything here is bounded.  A new agent past the limit takes the slot of one
that has ended; if there is none, it is counted under :data:`OTHER`.  The oldest idle sessions are forgotten first.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from hive.server.agents.tenant import EVERYTHING, View, split
from hive.server.agents.window import ActivityWindow, WindowSettings

logger = logging.getLogger(__name__)

OTHER = "other"
"""Counts agents past the limit, forgotten agents, and anonymous requests."""


class AgentProfile(msgspec.Struct):
    """What one agent has requested and received, in requests and tokens."""

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
        """Add the counts of another agent."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.tokens_generated += other.tokens_generated
        self.tokens_replayed += other.tokens_replayed


class AgentRegistry:
    """A bounded set of agents and sessions by name."""

    def __init__(
        self,
        max_agents: int,
        max_sessions: int = 65536,
        window: WindowSettings | None = None,
        max_tenant_agents: int | None = None,
    ) -> None:
        self.window = ActivityWindow(window or WindowSettings())
        self.max_agents = max_agents
        """Maximum number of agents with a slot, :data:`OTHER` not counted."""
        self._max_tenant_agents = max_agents if max_tenant_agents is None else max_tenant_agents
        """The same maximum for one tenant."""
        self._of_tenant: Counter[str] = Counter()
        """Agents with a slot, by tenant."""
        self._max_sessions = max_sessions
        self._agents: OrderedDict[str, AgentProfile] = OrderedDict()
        """Least recently seen first: by arrivals and registrations, whose order is the same on all ranks."""
        self._holds: Callable[[str], bool] | None = None
        self._forgotten: Callable[[str], None] | None = None
        self._exhausted: set[str | None] = set()
        """Tenants without an ended agent in this round; None stands for the whole server."""
        self._exhausted_in = -1
        self._warned = False
        self._sessions: OrderedDict[str, int] = OrderedDict()
        """Requests by session, least recently used first."""
        self.sessions_ended = 0
        self.requests = 0
        """Requests that have arrived so far: the clock of the waiting queue."""

    def reuse_slots(self, holds: Callable[[str], bool], forgotten: Callable[[str], None]) -> None:
        """Let new agents take the slots of ended ones from now on.

        Args:
            holds: whether an agent has resident KV; it then keeps its slot.
            forgotten: called with the name of each agent that has lost its slot, so that others who count by name can
                do as the registry does and count it under :data:`OTHER`.
        """
        self._holds, self._forgotten = holds, forgotten

    def register(self, name: str, description: str = "", session: str | None = None) -> AgentProfile:
        """Announce an agent, possibly again: the first message of a program to the server.

        When slots are short, agents that were never announced lose theirs first.
        """
        profile = self._seen(name)
        if session is not None:
            self._use_session(session, 0)
        if profile.name == name:
            profile.registered = True
            profile.description = description or profile.description
        return profile

    def profile(self, name: str | None) -> AgentProfile:
        """Return the profile under which requests of ``name`` are counted."""
        name = name or OTHER
        known = self._agents.get(name)
        if known is None:
            if self._full(name):
                name = OTHER
            known = self._agents.get(name)
        if known is None:
            known = self._agents[name] = AgentProfile(name)
            if (tenant := split(name)[0]) is not None:
                self._of_tenant[tenant] += 1
        return known

    def __len__(self) -> int:
        return len(self._agents)

    def busiest(self, count: int) -> list[AgentProfile]:
        """Return the agents with the most requests, busiest first."""
        return heapq.nsmallest(
            count, self._agents.values(), key=lambda profile: (-profile.requests, profile.name)
        )

    def has_session(self, name: str) -> bool:
        """Whether a session sent a request or registered an agent, and has not ended."""
        return name in self._sessions

    def is_registered(self, name: str) -> bool:
        """Whether an agent was announced."""
        known = self._agents.get(name)
        return known is not None and known.registered

    def arrived(self, agent: str | None, session: str | None, prompt_tokens: int) -> str:
        """Count an accepted request.

        Returns the name under which to count it until it leaves.  Use that name for everything else about the request:
        its agent may have got a slot of its own by then.
        """
        self.requests += 1
        profile = self._seen(agent)
        profile.requests += 1
        profile.prompt_tokens += prompt_tokens
        self.window.arrived(profile.name, prompt_tokens)
        if session is not None:
            self._use_session(session, 1)
        return profile.name

    def place(self, agent: str | None, number: int, max_passes: int) -> tuple[int, float, int]:
        """Return the sort key in a waiting queue by contribution: agents with a higher score first, ties by arrival.

        Args:
            agent: the agent of the request.
            number: :attr:`requests` at its arrival.
            max_passes: a request that this many later requests have arrived behind goes first, so that none starves.
        """
        if self.requests - number >= max_passes:
            return (0, 0.0, number)
        return (1, -self.window.score(self.profile(agent).name), 0)

    def left(self, agent: str | None, *, cached_tokens: int, generated: int, replayed: int) -> None:
        """Count a request that has left, for whatever reason."""
        profile = self.profile(agent)
        profile.cached_tokens += cached_tokens
        profile.tokens_generated += generated
        profile.tokens_replayed += replayed
        self.window.left(profile.name, cached_tokens, generated + replayed)

    def reused(self, agent: str | None, producers: Mapping[str, int]) -> None:
        """Count reused KV tokens by the agent that had computed them."""
        self.window.reused(self.profile(agent).name, producers)

    def _seen(self, name: str | None) -> AgentProfile:
        """Return the profile of an agent that sent a request, after trying to free a slot for a new one."""
        name = name or OTHER
        if name != OTHER and name not in self._agents and self._full(name):
            self._free_slot(name)
        profile = self.profile(name)
        self._agents.move_to_end(profile.name)
        return profile

    def _full(self, name: str) -> bool:
        """Whether there is no slot for a new agent; :data:`OTHER` always has one."""
        if name == OTHER:
            return False
        return self._crowded(name) or len(self._agents) - (OTHER in self._agents) >= self.max_agents

    def _crowded(self, name: str) -> bool:
        """Whether the tenant of a new agent has used up its slots."""
        tenant = split(name)[0]
        return tenant is not None and self._of_tenant[tenant] >= self._max_tenant_agents

    def _free_slot(self, name: str) -> None:
        """Forget the least recently seen agent that has ended, if any, to make place for a new one."""
        tenant = split(name)[0] if self._crowded(name) else None
        if self._exhausted_in != self.window.round:
            self._exhausted_in = self.window.round
            self._exhausted.clear()
        if tenant in self._exhausted:
            # The window only moves with the round, and a search visits all agents: too slow for every request.
            return
        over = self._first_over(tenant, registered=False) or self._first_over(tenant, registered=True)
        if over is not None:
            self._forget(over)
            return
        if tenant is None and not self._warned:
            self._warned = True
            logger.warning(
                "Hive: all %d slots for agents (--hive-max-agents) are taken by agents that are active or hold KV; "
                "others are counted together as %r",
                self.max_agents,
                OTHER,
            )
        self._exhausted.add(tenant)

    def _first_over(self, tenant: str | None, *, registered: bool) -> AgentProfile | None:
        """Return the least recently seen ended agent of a tenant (None: of any); None if there is none."""
        return next(
            (
                profile
                for profile in self._agents.values()
                if profile.registered is registered
                and (tenant is None or split(profile.name)[0] == tenant)
                and self._is_over(profile)
            ),
            None,
        )

    def _forget(self, over: AgentProfile) -> None:
        del self._agents[over.name]
        if (tenant := split(over.name)[0]) is not None:
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]
        self.profile(OTHER).add(over)
        assert self._forgotten is not None
        self._forgotten(over.name)

    def _is_over(self, profile: AgentProfile) -> bool:
        return (
            self._holds is not None
            and profile.name != OTHER
            and not self.window.knows(profile.name)
            and not self._holds(profile.name)
        )

    def _use_session(self, session: str, requests: int) -> None:
        """Count requests of a session, and mark it as the most recently used."""
        self._sessions[session] = self._sessions.pop(session, 0) + requests
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)

    def end_session(self, session: str) -> int | None:
        """Forget a session; return the number of its requests, or None if it is unknown."""
        requests = self._sessions.pop(session, None)
        self.sessions_ended += requests is not None
        return requests

    def summary(self, view: View = EVERYTHING) -> dict[str, Any]:
        """Return agents, busiest first, with their scores of the last round; sessions; and what agents share.

        ``edges_dropped`` counts reuses since start that did not fit into ``sharing``.  Names are qualified and all
        agents are included; only the session counts are restricted to the view.
        """
        agents = sorted(self._agents.values(), key=lambda profile: (-profile.requests, profile.name))
        scores = self.window.scores
        return {
            "agents": [
                {
                    **msgspec.structs.asdict(profile),
                    "contribution": asdict(scores[profile.name]) if profile.name in scores else None,
                }
                for profile in agents
            ],
            "sessions": self._count_sessions(view),
            "rounds": self.window.round,
            "sharing": self.window.edges(),
            "edges_dropped": self.window.edges_dropped,
        }

    def _count_sessions(self, view: View) -> dict[str, int]:
        if view.everything:
            return {"active": len(self._sessions), "ended": self.sessions_ended}
        return {"active": sum(map(view.shows, self._sessions))}
