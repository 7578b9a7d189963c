"""Sessions whose KV stays for a while because their clients asked for it (``retain``), within a quota.

All retained KV together is at most a share of the pool, and each tenant that retains KV has an equal part of it.
Retention is a preference and not a lock: a pool of which everything is retained evicts all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hive.server.agents.tenant import split

MAX_RETAINED = 4096
"""Maximum number of sessions that are retained at a time."""
DEFAULT_RETAIN_SHARE = 0.25


class Retention:
    """The retained sessions, by names that include their tenants.

    Args:
        share: the part of the pool that retained KV may take, 0 to 1.
    """

    def __init__(self, share: float = DEFAULT_RETAIN_SHARE) -> None:
        self.share = share
        self._until: dict[str | None, dict[str, float]] = {}
        """When each session's retention ends, by tenant; longest retained first."""
        self._count = 0
        self.changes = 0
        """How often a client has changed what is retained."""
        self.next_end = math.inf
        """When the first retention ends, as of the last call of :meth:`retained`."""

    def __len__(self) -> int:
        """Number of sessions, including those whose time may be over."""
        return self._count

    def retain(self, session: str, seconds: float, now: float) -> None:
        """Retain a session's KV for some seconds from now, instead of what was asked before; 0 ends its retention."""
        self.changes += 1
        if seconds <= 0:
            self.release(session)
            return
        tenant = split(session)[0]
        if session not in self._until.get(tenant, ()):
            self._make_place(now)
            self._count += 1
        self._until.setdefault(tenant, {})[session] = now + seconds

    def release(self, session: str) -> None:
        """End a session's retention."""
        tenant = split(session)[0]
        own = self._until.get(tenant)
        if own is None or own.pop(session, None) is None:
            return
        self._count -= 1
        self.changes += 1
        if not own:
            del self._until[tenant]

    def retained(self, tokens_of: Callable[[str], int], capacity: int, now: float) -> frozenset[str]:
        """Return the sessions whose KV is retained now.

        Of a tenant with more than its quota, the sessions that have been retained longest come first; one that does
        not fit is passed over.

        Args:
            tokens_of: returns the tokens of KV that a session would retain.
            capacity: tokens of the pool.
        """
        self._expire(now)
        self.next_end = min(
            (until for own in self._until.values() for until in own.values()), default=math.inf
        )
        if not self._until:
            return frozenset()
        quota = self.share * capacity / len(self._until)
        chosen = []
        for sessions in self._until.values():
            left = quota
            for session in sessions:
                tokens = tokens_of(session)
                if tokens <= left:
                    left -= tokens
                    chosen.append(session)
        return frozenset(chosen)

    def _make_place(self, now: float) -> None:
        """Make place for one more session: the tenant with the most sessions loses the oldest."""
        if self._count >= MAX_RETAINED:
            self._expire(now)
        if self._count >= MAX_RETAINED:
            largest = max(self._until.values(), key=len)
            self.release(next(iter(largest)))

    def _expire(self, now: float) -> None:
        for session in [name for own in self._until.values() for name, until in own.items() if until <= now]:
            self.release(session)
