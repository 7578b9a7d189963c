"""The bill of a session: model calls made, and their tokens."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, Field

from hive_frontend.client.reply import Reply


class Usage(BaseModel):
    """Model calls made, and their tokens."""

    requests: int = 0
    tokens_generated: int = 0
    """Tokens that the model computed."""
    tokens_replayed: int = 0
    """Tokens that the server's Logits Cache served instead."""
    prompt_tokens: int = 0
    """Tokens of prompts, as far as servers tell."""
    cached_tokens: int = 0
    """Those of them that servers had in their prefix caches."""
    cost: float | None = None
    """What the calls to clients with `prices` cost; None where there was none."""

    @staticmethod
    def sum(usages: Iterable[Usage]) -> Usage:
        """Usages added up."""
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
    """The bill of a session."""

    wall_s: float = 0.0
    agents: dict[str, Usage] = Field(default_factory=dict)
    """The same per agent."""


class _Bill:
    """`Usage` while it is counted: a model would check every number again at every call."""

    __slots__ = ("cached", "cost", "generated", "prompt", "replayed", "requests")

    def __init__(self) -> None:
        self.requests = self.generated = self.replayed = self.prompt = self.cached = 0
        self.cost: float | None = None


class Bills:
    """What each agent has used so far."""

    def __init__(self) -> None:
        self._bills: dict[str, _Bill] = {}

    def count(self, reply: Reply, agent: str) -> Reply:
        """Put a call on the bill of `agent`; returns its answer."""
        bill = self._bills.get(agent)
        if bill is None:
            bill = self._bills[agent] = _Bill()
        bill.requests += 1
        bill.generated += reply.tokens_generated
        bill.replayed += reply.tokens_replayed
        bill.prompt += reply.prompt_tokens
        bill.cached += reply.cached_tokens
        if reply.cost is not None:
            bill.cost = (bill.cost or 0.0) + reply.cost
        return reply

    def totals(self, wall_s: float) -> Totals:
        """The sums, and the same per agent."""
        agents = {
            agent: Usage(
                requests=bill.requests,
                tokens_generated=bill.generated,
                tokens_replayed=bill.replayed,
                prompt_tokens=bill.prompt,
                cached_tokens=bill.cached,
                cost=bill.cost,
            )
            for agent, bill in self._bills.items()
        }
        return Totals(**dict(Usage.sum(agents.values())), wall_s=wall_s, agents=agents)
