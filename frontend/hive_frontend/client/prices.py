"""The prices of an endpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from hive_frontend.client.contract import Completion

_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices per million tokens, in any currency: `HttpClient(url, prices=Prices(prompt=3, cached=0.3, output=15))`.

    Replayed tokens are free.
    """

    prompt: float
    output: float
    cached: float | None = None
    """Price of prompt tokens that hit the server's prefix cache; None for the same price as other prompt tokens."""

    def __post_init__(self) -> None:
        for field in fields(self):
            price = getattr(self, field.name)
            if price is None and field.name == "cached":
                continue
            # The exact types: True is a number, too.
            if type(price) not in (int, float) or not 0 <= price < math.inf:
                raise ValueError(f"Prices: {field.name} must be a number of at least 0, not {price!r}")

    def charge(self, done: Completion) -> Completion:
        """Return the answer with its `cost`."""
        cached = self.prompt if self.cached is None else self.cached
        cost = (
            (done.prompt_tokens - done.cached_tokens) * self.prompt
            + done.cached_tokens * cached
            + done.tokens_generated * self.output
        )
        return done._replace(cost=cost / _MILLION)
