"""Usage of a session: the number of model calls, their tokens and their cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pydantic import BaseModel, Field

from hive_frontend.client.reply import Reply


class Usage(BaseModel):
    """The number of model calls, their tokens and their cost."""

    requests: int = 0
    tokens_generated: int = 0
    """Tokens that the model computed."""
    tokens_replayed: int = 0
    """Tokens that the server's Logits Cache replayed instead."""
    prompt_tokens: int = 0
    """Tokens of prompts, as far as servers report them."""
    cached_tokens: int = 0
    """Prompt tokens that hit the servers' prefix caches."""
    cost: float | None = None
    """Cost of the calls to clients with `prices`; None if there was no such call."""

    @staticmethod
    def sum(usages: Iterable[Usage]) -> Usage:
        """Return the sum of several usages."""
        usages = list(usages)
        costs = [usage.cost for usage in usages if usage.cost is not None]
        return Usage(
            requests=sum(usage.requests for usage in usages),
            tokens_generated=sum(usage.tokens_generated for usage in usages),
            tokens_replayed=sum(usage.tokens_replayed for usage in usages),
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            cost=sum(costs) if costs else None,
        )


class Totals(Usage):
    """Usage of a session, in total and per agent."""

    wall_s: float = 0.0
    """Wall time of the session in seconds."""
    agents: dict[str, Usage] = Field(default_factory=dict)
    """Usage per agent."""


class _Counters:
    """Running counters for `Usage`. Plain, because a pydantic model validates every number at every call."""

    __slots__ = ("cached", "cost", "generated", "prompt", "replayed", "requests")

    def __init__(self) -> None:
        self.requests = self.generated = self.replayed = self.prompt = self.cached = 0
        self.cost: float | None = None


class UsageCounters:
    """The usage of each agent so far."""

    def __init__(self) -> None:
        self._counters: dict[str, _Counters] = {}

    def count(self, reply: Reply, agent: str) -> Reply:
        """Count a call of `agent`; return its answer."""
        counters = self._counters.get(agent)
        if counters is None:
            counters = self._counters[agent] = _Counters()
        counters.requests += 1
        counters.generated += reply.tokens_generated
        counters.replayed += reply.tokens_replayed
        counters.prompt += reply.prompt_tokens
        counters.cached += reply.cached_tokens
        if reply.cost is not None:
            counters.cost = (counters.cost or 0.0) + reply.cost
        return reply

    def totals(self, wall_s: float) -> Totals:
        """Return the total usage, and the usage per agent."""
        agents = {
            agent: Usage(
                requests=counters.requests,
                tokens_generated=counters.generated,
                tokens_replayed=counters.replayed,
                prompt_tokens=counters.prompt,
                cached_tokens=counters.cached,
                cost=counters.cost,
            )
            for agent, counters in self._counters.items()
        }
        return Totals(**dict(Usage.sum(agents.values())), wall_s=wall_s, agents=agents)


class Answered(Protocol):
    """The usage of an answered call."""

    @property
    def tokens_generated(self) -> int: ...
    @property
    def tokens_replayed(self) -> int: ...
    @property
    def finish_reason(self) -> str | None: ...
