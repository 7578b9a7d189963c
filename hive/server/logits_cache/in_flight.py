"""The states whose rows the model is computing for requests in flight.

A request that needs such a row waits for it and draws its own token from it: samples of a state that arrive together
share one computation for as long as they agree.  Two alternatives were rejected.  To let only the first sample run
until its end would save as much, but the others would wait for tokens that they do not share with it.  To give each
sample its own row as soon as the prompt is known was measured with an 8B model on an H200: a search took as many
steps, three times the tokens, and longer.
"""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 64
"""Scheduler loops that a request waits for one row; the request that computes it may itself have to wait.  Loops
rather than seconds, because all tensor-parallel ranks must give up in the same loop."""


class InFlight:
    """Counts, by the state's digest, the requests for which the model computes its row."""

    def __init__(self) -> None:
        self._states: dict[bytes, int] = {}

    def __contains__(self, state: bytes) -> bool:
        return state in self._states

    def __len__(self) -> int:
        return len(self._states)

    def add(self, state: bytes) -> None:
        """Count one more request for which the row is computed."""
        self._states[state] = self._states.get(state, 0) + 1

    def discard(self, state: bytes) -> None:
        """Count one less, which has its row or has left; states added before `clear` are ignored."""
        left = self._states.get(state, 0) - 1
        if left > 0:
            self._states[state] = left
        else:
            self._states.pop(state, None)

    def clear(self) -> None:
        """Forget all states, so that no request waits for a row computed with old weights."""
        self._states.clear()
