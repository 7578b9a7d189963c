"""Dialogues: requests of one agent in one session, each of which continues or departs from the one before.

All KV that only one dialogue used is needed again at one time: when the dialogue's next request arrives.  So the
eviction predicts this time for each dialogue, not for each node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hive.server.eviction.hints import Event

_RHYTHM_GAPS = 5
"""Gaps over which a dialogue's rhythm is averaged."""
RHYTHM_LIMITS = (5.0, 10.0, 25.0, 80.0)
"""Seconds between the classes of rhythm."""
RHYTHMS = len(RHYTHM_LIMITS) + 2
"""Classes of rhythm; the last one is that of dialogues without a gap so far."""

HIT_BUCKETS = 4


def hit_bucket(hits: int) -> int:
    """Return the class of KV that was used ``hits`` times after it was stored: 0, 1, 2, more."""
    return min(hits, HIT_BUCKETS - 1)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Dialogue:
    """The state of one dialogue."""

    agent: str
    named: bool
    """Whether its requests name a session; else the tree shows that they continue each other."""
    number: int
    turn: int = 0
    """Requests so far, but those that ran beside another one of the dialogue."""
    running: int = 0
    """Its requests in flight."""
    since: float = 0.0
    """When its last request arrived, or ended, in seconds."""
    idle: bool = False
    """Whether it waits for its next request, and its return is an observation."""
    event: Event | None = None
    """What the server saw at the end of the last request, or what the client said since."""
    expected: float | None = None
    """Seconds from ``since`` to the next request, as the client says."""
    path: list[int] = field(default_factory=lambda: [0] * HIT_BUCKETS)
    """Tokens of its own KV on the device that its last request used or stored, by :func:`hit_bucket`."""
    gaps: int = 0
    _log_gap: float = 0.0

    def returned(self, gap: float) -> None:
        """Take the seconds that the dialogue was idle into its rhythm."""
        self.gaps += 1
        self._log_gap += (math.log(gap + 0.5) - self._log_gap) / min(self.gaps, _RHYTHM_GAPS)

    @property
    def rhythm(self) -> int:
        """The class of its usual gap."""
        if not self.gaps or not self.named:
            # What seems to be the rhythm of an anonymous dialogue may be that of several clients.
            return RHYTHMS - 1
        return sum(self._log_gap >= math.log(limit) for limit in RHYTHM_LIMITS)
