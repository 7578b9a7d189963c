"""What one request took, and the requests of one arm in one block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer and what it took, seen from the client."""

    latency_s: float
    ttft_s: float
    """Time to the first token, or to the first chunk that held some."""
    tokens: int
    """Output tokens, replayed ones included."""
    replayed: int
    """Output tokens that the Logits Cache served."""
    output: tuple[int, ...] = ()
    """The output's token ids."""
    cached: int = 0
    """Prompt tokens whose KV was there."""

    @property
    def tps(self) -> float:
        """Output tokens per second of this request."""
        return self.tokens / self.latency_s

    @property
    def served_whole(self) -> bool:
        """Whether the model never ran for it."""
        return 0 < self.tokens == self.replayed


Key = tuple[str, int]
"""State and number of the sample: names the same request in every arm."""
Samples = Mapping[Key, Timing]
