"""The states whose rows the model is computing for requests in flight.

A request that needs such a row waits for it and draws its own token from it: samples of a state that arrive together
share one computation for as long as they agree.  Two alternatives were rejected.  To let only the first sample run
until its end would save as much, but the others would wait for tokens that they do not share with it.  To give each
sample its own row as soon as the prompt is known was measured with an 8B model on an H200: a search took as many
steps, three times the tokens, and longer.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

PATIENCE: Final = 64
"""Scheduler loops that a request waits for one row; the request that computes it may itself have to wait.  Loops
rather than seconds, because all tensor-parallel ranks must give up in the same loop."""


class InFlight(Counter[bytes]):
    """Counts, by the state's digest, the requests for which the model computes its row."""

    def add(self, state: bytes) -> None:
        """Count one more request for which the row is computed."""
        self[state] += 1

    def discard(self, state: bytes) -> None:
        """Count one less, which has its row or has left; states added before `clear` are ignored."""
        self[state] -= 1
        if self[state] <= 0:
            del self[state]
