"""Rows that are being computed: which states the requests in flight are at.

A request that needs a row which the model is computing for another one waits for it, and draws its own token from it:
samples of a state that are asked for at the same time share one computation for as long as they agree. The alternative,
to let only the first one go ahead until its end, would save as much and make the others wait for tokens that they will
not have in common with it.  Another, to give each sample a row of its own as soon as the prompt is known, was measured
with a model of 8B parameters on an H200: a search took as many steps, three times the tokens, and longer.
"""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 64
"""Loops of the scheduler that a request waits for one row; whoever computes it may itself have to wait. A number of
loops and no time, because all tensor-parallel ranks must give up in the same one."""


class InFlight:
    """How many requests compute the row of a state, by the state's digest."""

    def __init__(self) -> None:
        self._states: dict[bytes, int] = {}

    def __contains__(self, state: bytes) -> bool:
        return state in self._states

    def __len__(self) -> int:
        return len(self._states)

    def add(self, state: bytes) -> None:
        """One more request computes it."""
        self._states[state] = self._states.get(state, 0) + 1

    def discard(self, state: bytes) -> None:
        """One of them has its row, or is gone; states of before a `clear` are none."""
        left = self._states.get(state, 0) - 1
        if left > 0:
            self._states[state] = left
        else:
            self._states.pop(state, None)

    def clear(self) -> None:
        """Nobody shall wait for what is computed now."""
        self._states.clear()
