"""Small numbers for agents: rows of a policy's tables."""

from __future__ import annotations

from collections.abc import Iterator

MOST = 4096
"""Agents that have numbers of their own."""


class AgentNumbers:
    """Gives each agent a number, from 0, and the numbers of forgotten agents to others.

    The registry bounds the agents there are, and says which are over.  Behind it, KV on the host can bring back any
    number of old names: what goes beyond ``most`` shares one further number.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._begun = 0

    def __len__(self) -> int:
        """One more than the highest number that was given."""
        return self._begun

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Agents that have a number of their own."""
        return iter(self._numbers.items())

    def of(self, agent: str) -> int:
        """The number of an agent, which gets one if it has none."""
        number = self._numbers.get(agent)
        if number is None:
            if self._free:
                number = self._free.pop()
            elif len(self._numbers) < self._most:
                number = self._begun
                self._begun += 1
            else:
                self._begun = self._most + 1
                return self._most
            self._numbers[agent] = number
        return number

    def find(self, agent: str) -> int | None:
        """The number of an agent; None if it has none of its own."""
        return self._numbers.get(agent)

    def forget(self, agent: str) -> int | None:
        """Take the number from an agent that is over; it was this, if it had one."""
        number = self._numbers.pop(agent, None)
        if number is not None:
            self._free.append(number)
        return number
