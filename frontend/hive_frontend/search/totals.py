"""Usage of a session: the number of model calls, their tokens and their cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
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
        total = Counters()
        for usage in usages:
            total.add(usage, usage.requests)
        return total.usage()


class Totals(Usage):
    """Usage of a session, in total and per agent."""

    wall_s: float = 0.0
    """Wall time of the session in seconds."""
    agents: dict[str, Usage] = Field(default_factory=dict)
    """Usage per agent."""


@dataclass(slots=True)
class Counters:
    """Running counters for `Usage`. Plain, because a pydantic model validates every number at every call."""

    requests: int = 0
    tokens_generated: int = 0
    tokens_replayed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None

    def add(self, done: Reply | Usage, requests: int) -> None:
        """Count what some requests used."""
        self.requests += requests
        self.tokens_generated += done.tokens_generated
        self.tokens_replayed += done.tokens_replayed
        self.prompt_tokens += done.prompt_tokens
        self.cached_tokens += done.cached_tokens
        if done.cost is not None:
            self.cost = (self.cost or 0.0) + done.cost

    def usage(self) -> Usage:
        return Usage(**asdict(self))


class UsageCounters:
    """The usage of each agent so far."""

    def __init__(self) -> None:
        self._counters: dict[str, Counters] = {}

    def count(self, reply: Reply, agent: str) -> Reply:
        """Count a call of `agent`; return its answer."""
        counters = self._counters.get(agent)
        if counters is None:
            counters = self._counters[agent] = Counters()
        counters.add(reply, 1)
        return reply

    def totals(self, wall_s: float) -> Totals:
        """Return the total usage, and the usage per agent."""
        agents = {agent: counters.usage() for agent, counters in self._counters.items()}
        return Totals(**dict(Usage.sum(agents.values())), wall_s=wall_s, agents=agents)


class Answered(Protocol):
    """An answered call."""

    @property
    def reply(self) -> Reply: ...
