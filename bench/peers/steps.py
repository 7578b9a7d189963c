"""What the requests of a program took, as the program sees them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hive_frontend.client import OnText

from bench.harness.forwarding import ForwardingModel
from hive import Client, Completion, Request


@dataclass
class Steps:
    """The steps of some runs: a step is one request to the model, from its being made to its answer."""

    latencies_s: list[float] = field(default_factory=list)
    generated: int = 0
    """Output tokens that the model computed."""
    replayed: int = 0
    """Output tokens that a cache served."""

    def add(self, latency_s: float, generated: int, replayed: int) -> None:
        self.latencies_s.append(latency_s)
        self.generated += generated
        self.replayed += replayed

    def taken(self) -> Steps:
        """What was counted since this was called last."""
        taken = Steps(self.latencies_s, self.generated, self.replayed)
        self.latencies_s, self.generated, self.replayed = [], 0, 0
        return taken


class MeteredModel(ForwardingModel):
    """A model that hands everything on to another one, and counts it."""

    def __init__(self, model: Client, steps: Steps) -> None:
        super().__init__(model)
        self._steps = steps

    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        began = time.perf_counter()
        completion = await super().complete(request, on_text)
        self._steps.add(time.perf_counter() - began, completion.tokens_generated, completion.tokens_replayed)
        return completion
