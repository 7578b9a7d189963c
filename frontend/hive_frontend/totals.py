"""The bill of a session: model calls made, and their tokens."""

from __future__ import annotations

from pydantic import BaseModel, Field

from hive_frontend.reply import Reply


class Usage(BaseModel):
    """Model calls made, and their tokens."""

    requests: int = 0
    tokens_generated: int = 0
    """Tokens that the model computed."""
    tokens_replayed: int = 0
    """Tokens that the server's Logits Cache served instead."""


class Totals(Usage):
    """The bill of a session."""

    wall_s: float = 0.0
    agents: dict[str, Usage] = Field(default_factory=dict)
    """The same per agent."""


class _Bill:
    """`Usage` while it is counted: a model would check every number again at every call."""

    __slots__ = ("generated", "replayed", "requests")

    def __init__(self) -> None:
        self.requests = self.generated = self.replayed = 0


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
        return reply

    def totals(self, wall_s: float) -> Totals:
        """The sums, and the same per agent."""
        agents = {
            agent: Usage(
                requests=bill.requests, tokens_generated=bill.generated, tokens_replayed=bill.replayed
            )
            for agent, bill in self._bills.items()
        }
        return Totals(
            requests=sum(usage.requests for usage in agents.values()),
            tokens_generated=sum(usage.tokens_generated for usage in agents.values()),
            tokens_replayed=sum(usage.tokens_replayed for usage in agents.values()),
            wall_s=wall_s,
            agents=agents,
        )
