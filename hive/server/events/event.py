"""Live events: snapshots of a scheduler, as ``GET /hive/events`` streams them.

Every event is a complete snapshot of its part of the scheduler, not a difference from an earlier one.  A client that
missed some events is up to date with the next one, and nothing has to be buffered for it.  Counters count since the
server's start; a rate is the difference of two snapshots.
"""

from __future__ import annotations

import msgspec

from hive.server.agents.contribution import Contribution
from hive.server.agents.registry import AgentProfile


class AgentLine(AgentProfile):
    """One agent; the fields are those of ``GET /hive/agents``."""

    running: int = 0
    """Requests that have arrived and not left."""
    resident_tokens: int = 0
    stored_tokens: int = 0
    evicted_tokens: int = 0
    contribution: Contribution | None = None


class SessionLine(msgspec.Struct):
    """One run of a program, as seen from its requests."""

    name: str
    agents: list[str] = []
    """In the order of their first requests."""
    states: int = 0
    """Number of states that sent requests: the size of a search so far."""
    state: str | None = None
    """The state of the last request."""
    running: int = 0
    requests: int = 0
    tokens_generated: int = 0
    tokens_replayed: int = 0
    began: float = 0.0
    """Time of the first request's arrival, in seconds since 1970."""
    last_active: float = 0.0
    """Time of the last arrival or departure of a request."""


class Event(msgspec.Struct, tag_field="event", tag=str.lower):
    """Base of all events; on the wire the field ``event`` says which kind it is."""


class Agents(Event):
    """The agents with the most requests."""

    agents: list[AgentLine]
    omitted: int = 0
    """Number of agents that are not listed."""


class Scores(Event):
    """Contribution scores of the last rounds."""

    round: int
    history: dict[str, list[tuple[int, float]]]
    """By agent: (round, score), oldest first."""


class LogitsCache(Event):
    """Counters of the Logits Cache; absent if it is off."""

    lookups: int = 0
    hits: int = 0
    """Lookups that replayed at least one token."""
    tokens_replayed: int = 0
    """Of requests that used the cache and have left."""
    tokens_generated: int = 0
    """Tokens of the same requests that the model computed."""
    nodes: int = 0
    bytes: int = 0
    capacity_bytes: int = 0
    evicted_nodes: int = 0


class RadixCache(Event):
    """KV on the device; absent if Hive's radix cache is not in use."""

    policy: str
    capacity_tokens: int = 0
    resident_tokens: int = 0
    evicted_tokens: int = 0
    evictions: int = 0


class Requests(Event):
    """Requests by stage."""

    running: int = 0
    """In the decode batch."""
    queued: int = 0
    replaying: int = 0
    waiting: int = 0
    """Requests in replay that wait for a row that the model computes for another request, or for an earlier distinct
    sample."""


class Sessions(Event):
    """The most recently active sessions, newest first."""

    sessions: list[SessionLine]
    omitted: int = 0
    """Number of open sessions that are not listed."""
    ended: int = 0
    """Number of sessions that programs have ended since start."""


AnyEvent = Agents | Scores | LogitsCache | RadixCache | Requests | Sessions
