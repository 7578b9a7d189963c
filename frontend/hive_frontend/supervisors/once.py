"""The supervisor that does not search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hive_frontend.supervisors.base import Supervisor
from hive_frontend.supervisors.state import Decision, Fire, State


class Once(Supervisor):
    """Fire every state once: the agent runs like an ordinary coroutine. The default."""

    def __init__(self) -> None:
        self._ready: list[State] = []

    def init(self, states: Sequence[State]) -> None:
        for state in states:
            self.commit(state)

    def fire(self) -> Iterable[Decision]:
        ready, self._ready = self._ready, []
        return [Fire(state) for state in ready]

    def commit(self, state: State) -> None:
        if state.kind == "waiting":
            self._ready.append(state)
