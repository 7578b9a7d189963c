"""Calls that were sent as one list, and should run as one batch.

They reach the scheduler one after the other, within a millisecond or two.  If the first one ran alone, in a batch of
its own, all others would wait for it; when the batch is small, this doubles the time to the first token.
"""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE_S = 0.01
"""How long the first call waits for the last one, in seconds.  A call that was refused on the way never arrives."""


@dataclass(slots=True)
class _Group:
    missing: int
    deadline: float


class Siblings:
    """Tracks which lists of calls are complete."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def arrived(self, group: str, calls: int, now: float) -> None:
        """Count an arrived call of a list of ``calls``; ``now`` is in seconds."""
        found = self._groups.setdefault(group, _Group(calls, now + PATIENCE_S))
        found.missing -= 1
        if found.missing <= 0:
            del self._groups[group]

    def waits(self, group: str, now: float) -> bool:
        """Whether the arrived calls of a list must still wait for the others."""
        found = self._groups.get(group)
        if found is None:
            return False
        if now >= found.deadline:
            del self._groups[group]
            return False
        return True
