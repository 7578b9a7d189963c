"""What clients say about the next request of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hive_frontend.wire import EVENTS as EVENTS
from hive_frontend.wire import Event as Event


@dataclass(frozen=True, slots=True)
class Hint:
    """A client's hints about the KV of one session or request; every field is optional."""

    event: Event | None = None
    """What the session waits for."""
    seconds: float | None = None
    """Expected time until its next request, >= 0."""
    priority: int | None = None
    """KV of higher priority is evicted later, all else being equal, -100 to 100; 0 unless it is set."""
    retain: float | None = None
    """Seconds for which its KV should stay, within the tenant's quota."""
    discard: bool | None = None
    """Whether its KV will not be used again."""

    @classmethod
    def of(cls, tag: Mapping[str, Any]) -> Self | None:
        """Return the hints in a flat, checked tag (:mod:`hive.server.request_tag`); None if it has none."""
        if _NAMES.isdisjoint(tag):
            return None
        return cls(
            tag.get("expects_event"),
            tag.get("expects_seconds"),
            tag.get("kv_priority"),
            tag.get("retain"),
            tag.get("discard"),
        )


_NAMES = frozenset({"expects_event", "kv_priority", "retain", "discard"})
