"""A sliding window of rounds over the activity of agents, scored at the end of each round.

A round is a fixed number of requests.  This logical clock makes all tensor-parallel ranks close a round, and so change
the scores, at the same request.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hive.server.agents.contribution import Activity, Contribution, Sharing, contributions

HISTORY_ROUNDS = 256
HISTORY_AGENTS = 32
"""Agents per round that the history keeps: those with the highest scores."""


@dataclass(frozen=True)
class WindowSettings:
    """Settings of the window."""

    round_requests: int = 16
    """Requests in a round."""
    rounds: int = 16
    """Rounds in the window."""
    collaborative_weight: float = 0.6
    """Weight of the collaborative part of the score; the paper asks for more than one half."""
    max_edges: int = 4096
    """Maximum pairs of agents in the window; sharing between further pairs is not counted."""


@dataclass(slots=True)
class _Round:
    activities: dict[str, Activity] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    sharing: dict[tuple[str, str], Sharing] = field(default_factory=dict)


class ActivityWindow:
    """Counts and scores the activity of agents; the caller bounds the agents, the settings bound the edges."""

    def __init__(self, settings: WindowSettings) -> None:
        self.settings = settings
        self.round = 0
        """Rounds closed since start."""
        self.scores: dict[str, Contribution] = {}
        """Scores of the last closed round."""
        self.history: deque[tuple[int, dict[str, float]]] = deque(maxlen=HISTORY_ROUNDS)
        """(round, score by agent), oldest first."""
        self.edges_dropped = 0
        """Reuses since start that were not counted, because the window had too many edges."""
        self._in_round = 0
        self._running: Counter[str] = Counter()
        self._rounds: deque[_Round] = deque([_Round()])
        self._activities: dict[str, Activity] = {}
        self._sharing: dict[tuple[str, str], Sharing] = {}

    def arrived(self, agent: str, prompt_tokens: int) -> None:
        """Count a request; if the current round is full, close it first."""
        if self._in_round >= self.settings.round_requests:
            self._close()
        self._in_round += 1
        self._running[agent] += 1
        running = self._running[agent]
        self._count(agent, Activity(requests=1, prompt_tokens=prompt_tokens, running=running))
        peaks = self._rounds[-1].peaks
        peaks[agent] = max(peaks.get(agent, 0), running)

    def left(self, agent: str, cached_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a request that has left."""
        self._running[agent] -= 1
        if not self._running[agent]:
            del self._running[agent]
        if cached_tokens or output_tokens:
            # A round must not hold an agent without activity: it would never be removed from the window.
            self._count(agent, Activity(cached_tokens=cached_tokens, output_tokens=output_tokens))

    def reused(self, agent: str, producers: Mapping[str, int]) -> None:
        """Count KV tokens that ``agent`` reused, by the agent that had computed them."""
        for producer, tokens in producers.items():
            if producer == agent or tokens <= 0:
                continue
            edge = (agent, producer)
            if edge not in self._sharing and len(self._sharing) >= self.settings.max_edges:
                self.edges_dropped += 1
                continue
            for sharing in (self._rounds[-1].sharing, self._sharing):
                counted = sharing.setdefault(edge, Sharing())
                counted.tokens += tokens
                counted.events += 1

    def score(self, agent: str) -> float:
        """Return the agent's score of the last closed round; 0 if it has none yet."""
        known = self.scores.get(agent)
        return known.score if known is not None else 0.0

    def knows(self, agent: str) -> bool:
        """Whether the agent has a running request, or appears in the window or in the last scores."""
        return agent in self._running or agent in self._activities or agent in self.scores

    def running(self, agent: str) -> int:
        """Return the number of the agent's requests that have arrived and not left."""
        return self._running[agent]

    def history_of(self, agent: str) -> list[tuple[int, float]]:
        """Return the agent's scores as (round, score), oldest first."""
        return [(number, scores[agent]) for number, scores in self.history if agent in scores]

    def edges(self) -> list[dict[str, Any]]:
        """Return the shared-token graph of the window, heaviest edges first, as JSON-safe values."""
        ordered = sorted(self._sharing.items(), key=lambda item: (-item[1].weight, item[0]))
        return [
            {"agent": agent, "producer": producer, "tokens": edge.tokens, "events": edge.events}
            for (agent, producer), edge in ordered
        ]

    def _count(self, agent: str, done: Activity) -> None:
        for activities in (self._rounds[-1].activities, self._activities):
            activities.setdefault(agent, Activity()).add(done)

    def _close(self) -> None:
        peaks: dict[str, int] = {}
        for past in self._rounds:
            for agent, peak in past.peaks.items():
                peaks[agent] = max(peaks.get(agent, 0), peak)
        self.scores = contributions(
            self._activities, peaks, self._sharing, self.settings.collaborative_weight
        )
        self.round += 1
        self._in_round = 0
        best = sorted(self.scores.items(), key=lambda item: (-item[1].score, item[0]))[:HISTORY_AGENTS]
        self.history.append((self.round, {name: found.score for name, found in best}))
        self._rounds.append(_Round())
        if len(self._rounds) > self.settings.rounds:
            self._forget(self._rounds.popleft())

    def _forget(self, past: _Round) -> None:
        for agent, done in past.activities.items():
            total = self._activities[agent]
            total.add(done, sign=-1)
            if total == Activity():
                del self._activities[agent]
        for edge, shared in past.sharing.items():
            kept = self._sharing[edge]
            kept.tokens -= shared.tokens
            kept.events -= shared.events
            if not kept.events:
                del self._sharing[edge]
