"""Live events: snapshots of a scheduler, as ``GET /hive/events`` streams them.

Every event is a whole snapshot of its part of the scheduler, not a difference to an earlier one.  A client that missed
some is up to date with the next one, and nothing has to be buffered for it.  Counters count since the server's start; a
rate is the difference of two snapshots.
"""

from __future__ import annotations

import msgspec

from hive.server.agents.contribution import Contribution


class AgentLine(msgspec.Struct):
    """One agent; fields have the names and the meaning that they have in ``GET /hive/agents``."""

    name: str
    description: str = ""
    registered: bool = False
    running: int = 0
    """Requests that arrived and have not left."""
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens_generated: int = 0
    tokens_replayed: int = 0
    resident_tokens: int = 0
    stored_tokens: int = 0
    evicted_tokens: int = 0
    contribution: Contribution | None = None


class SessionLine(msgspec.Struct):
    """One run of a program, as far as its requests tell."""

    name: str
    agents: list[str] = []
    """Those that asked first come first."""
    states: int = 0
    """States that asked for something: the size of a search so far."""
    state: str | None = None
    """Whose request came last."""
    running: int = 0
    requests: int = 0
    tokens_generated: int = 0
    tokens_replayed: int = 0
    began: float = 0.0
    """When its first request arrived, in seconds since 1970."""
    moved: float = 0.0
    """When a request of it arrived or left last."""


class Event(msgspec.Struct, tag_field="event", tag=str.lower):
    """Base of all events; on the wire the field ``event`` says which one it is."""


class Agents(Event):
    """The agents with the most requests."""

    agents: list[AgentLine]
    omitted: int = 0
    """Agents that are not shown."""


class Scores(Event):
    """Contribution scores of the last rounds."""

    round: int
    history: dict[str, list[tuple[int, float]]]
    """By agent: (round, score), oldest first."""


class LogitsCache(Event):
    """Counters of the Logits Cache; absent where there is none."""

    lookups: int = 0
    hits: int = 0
    """Lookups that replayed at least one token."""
    tokens_replayed: int = 0
    """Of requests that took part and have left."""
    tokens_generated: int = 0
    """Of the same requests: computed by the model."""
    nodes: int = 0
    bytes: int = 0
    capacity_bytes: int = 0
    evicted_nodes: int = 0


class RadixCache(Event):
    """KV on the device; absent where SGLang's own kind of cache serves."""

    policy: str
    capacity_tokens: int = 0
    resident_tokens: int = 0
    evicted_tokens: int = 0
    evictions: int = 0


class Requests(Event):
    """Requests by where they are."""

    running: int = 0
    """In the batch that decodes."""
    queued: int = 0
    replaying: int = 0
    waiting: int = 0
    """Of those in replay: for a row that the model computes for another one, or for an earlier distinct sample."""


class Sessions(Event):
    """The sessions that did something last, newest first."""

    sessions: list[SessionLine]
    omitted: int = 0
    """Sessions under way that are not shown."""
    ended: int = 0
    """Sessions that said goodbye since start."""


AnyEvent = Agents | Scores | LogitsCache | RadixCache | Requests | Sessions
