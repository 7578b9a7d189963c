"""What an endpoint charges."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from hive_frontend.client.contract import Completion

_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What a million tokens cost, in any currency: `HttpClient(url, prices=Prices(prompt=3, cached=0.3, output=15))`.

    Tokens that a server replayed cost nothing.
    """

    prompt: float
    output: float
    cached: float | None = None
    """Of the prompt's tokens, those that the server had in its cache; None: as much as the others."""

    def __post_init__(self) -> None:
        for field in fields(self):
            price = getattr(self, field.name)
            if price is None and field.name == "cached":
                continue
            # The exact types: True is a number, too.
            if type(price) not in (int, float) or not 0 <= price < math.inf:
                raise ValueError(f"Prices: {field.name} must be a number of at least 0, not {price!r}")

    def charge(self, done: Completion) -> Completion:
        """The answer with what it cost."""
        cached = self.prompt if self.cached is None else self.cached
        cost = (
            (done.prompt_tokens - done.cached_tokens) * self.prompt
            + done.cached_tokens * cached
            + done.tokens_generated * self.output
        )
        return done._replace(cost=cost / _MILLION)
