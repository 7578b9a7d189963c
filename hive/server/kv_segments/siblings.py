"""Calls that were sent as one list, and are to run as one batch.

They reach the scheduler one after the other, within a millisecond or two.  The first one alone would make a batch of
its own, and all others would wait for it: twice the time to the first token, where that is a small batch.
"""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE_S = 0.01
"""How long the first one waits for the last.  One that was refused on the way never comes."""


@dataclass(slots=True)
class _Group:
    missing: int
    deadline: float


class Siblings:
    """Which lists are complete."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def arrived(self, group: str, calls: int, now: float) -> None:
        """One call of a list of ``calls`` is here, at a time in seconds."""
        found = self._groups.setdefault(group, _Group(calls, now + PATIENCE_S))
        found.missing -= 1
        if found.missing <= 0:
            del self._groups[group]

    def waits(self, group: str, now: float) -> bool:
        """Whether a list's calls wait for others of it."""
        found = self._groups.get(group)
        if found is None:
            return False
        if now >= found.deadline:
            del self._groups[group]
            return False
        return True
