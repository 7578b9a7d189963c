"""What clients say about the next request of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Event = Literal["tool", "human", "subagent", "end"]
"""What a session waits for after a request: a tool's result, a person's answer, a subagent, or nothing: it is over."""

EVENTS: tuple[Event, ...] = get_args(Event)


@dataclass(frozen=True, slots=True)
class Hint:
    """A client's hints about the KV of one session or request; every field is optional."""

    event: Event | None = None
    """What the session waits for."""
    seconds: float | None = None
    """Expected time until its next request, >= 0."""
    priority: int = 0
    """KV of higher priority is evicted later, all else being equal, -100 to 100."""
    retain: float | None = None
    """Seconds for which its KV should stay, within the tenant's quota."""
    discard: bool = False
    """Whether its KV will not be used again."""
