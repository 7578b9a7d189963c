"""Small integers for agents, which index the tables of a policy."""

from __future__ import annotations

from collections.abc import Iterator

MOST = 4096
"""Agents that can have a number of their own."""


class AgentNumbers:
    """Assigns numbers from 0 to agents, and reuses the numbers of forgotten ones.

    The registry bounds the number of agents and says which have ended.  KV that is loaded back from the host can still
    bring up any number of old names: agents beyond ``most`` share one further number.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._begun = 0

    def __len__(self) -> int:
        """One more than the highest number assigned so far."""
        return self._begun

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Iterate over (agent, number) for agents with a number of their own."""
        return iter(self._numbers.items())

    def of(self, agent: str) -> int:
        """Return the number of an agent; assign one if it has none."""
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
        """Return the number of an agent; None if it has none of its own."""
        return self._numbers.get(agent)

    def forget(self, agent: str) -> int | None:
        """Free the number of an agent that has ended, and return it; None if it had none."""
        number = self._numbers.pop(agent, None)
        if number is not None:
            self._free.append(number)
        return number
