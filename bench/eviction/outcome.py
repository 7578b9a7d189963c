"""What a replay counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.eviction.workload import SPAMMER
from bench.traces.trace import HOT_AGENTS


@dataclass(slots=True)
class AgentTokens:
    requests: int = 0
    prompt: int = 0
    cached: int = 0
    """Found in the cache."""


@dataclass(slots=True)
class Outcome:
    """One trace, pool and policy."""

    by_agent: dict[str | None, AgentTokens] = field(default_factory=dict)
    evicted_tokens: int = 0
    evict_calls: int = 0
    evict_seconds: float = 0.0

    def count(self, agent: str | None, prompt: int, cached: int) -> None:
        """A request was admitted."""
        tokens = self.by_agent.setdefault(agent, AgentTokens())
        tokens.requests += 1
        tokens.prompt += prompt
        tokens.cached += cached

    @property
    def prompt_tokens(self) -> int:
        """Of all requests."""
        return sum(tokens.prompt for tokens in self.by_agent.values())

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that the model had to compute."""
        return sum(tokens.prompt - tokens.cached for tokens in self.by_agent.values())

    @property
    def hit(self) -> float | None:
        """Share of all prompt tokens that were found in the cache."""
        return self._hit(self.by_agent)

    @property
    def hot_hit(self) -> float | None:
        """The same of the hot agents alone; None if there are none."""
        return self._hit(agent for agent in self.by_agent if agent in HOT_AGENTS)

    @property
    def cold_hit(self) -> float | None:
        """The same of all others but the one that does harm."""
        return self._hit(agent for agent in self.by_agent if agent not in (*HOT_AGENTS, SPAMMER))

    def _hit(self, agents: Iterable[str | None]) -> float | None:
        chosen = [self.by_agent[agent] for agent in agents]
        prompt = sum(tokens.prompt for tokens in chosen)
        return sum(tokens.cached for tokens in chosen) / prompt if prompt else None
