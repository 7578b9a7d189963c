"""How much each agent contributes to a workload (paper, section 7.1, equations 5 to 8).

The paper leaves three things open.  Here every factor is divided by the largest one among the agents of the window,
efficiency is the share of prompt tokens that were cached, and concurrency is the mean of the average and the peak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Activity:
    """What one agent did within a round or a window of rounds."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    running: int = 0
    """Sum, over requests, of the agent's running requests at its arrival, itself included."""

    def add(self, other: Activity, sign: int = 1) -> None:
        self.requests += sign * other.requests
        self.prompt_tokens += sign * other.prompt_tokens
        self.cached_tokens += sign * other.cached_tokens
        self.output_tokens += sign * other.output_tokens
        self.running += sign * other.running


@dataclass(slots=True)
class Sharing:
    """KV that one agent reused and another one had computed."""

    tokens: int = 0
    events: int = 0

    @property
    def weight(self) -> float:
        """Equation 8: the volume counts by its square root, repeated reuse by its logarithm."""
        return math.sqrt(self.tokens) * math.log1p(self.events)


@dataclass(frozen=True, slots=True)
class Contribution:
    """An agent's score and its factors; every number is in [0, 1] and relative to the other agents."""

    activity: float
    workload: float
    efficiency: float
    concurrency: float
    intrinsic: float
    """Equation 6: the product of the four factors above, divided by the largest one."""
    collaborative: float
    """Equation 7: the weights of the edges from and to the agent, divided by the largest sum."""
    score: float
    """Equation 5."""


def contributions(
    activities: Mapping[str, Activity],
    peaks: Mapping[str, int],
    sharing: Mapping[tuple[str, str], Sharing],
    collaborative_weight: float,
) -> dict[str, Contribution]:
    """Score every agent with at least one request.

    Args:
        activities: by agent, over the window.
        peaks: by agent, the most requests that ran at once in the window.
        sharing: by (agent that reused the KV, agent that had computed it).
        collaborative_weight: beta of equation 5, in [0, 1]; alpha is 1 - beta.
    """
    active = {name: done for name, done in activities.items() if done.requests > 0}
    activity = _relative({name: done.requests for name, done in active.items()})
    workload = _relative({name: done.prompt_tokens + done.output_tokens for name, done in active.items()})
    efficiency = _relative(
        {name: min(1.0, done.cached_tokens / max(1, done.prompt_tokens)) for name, done in active.items()}
    )
    concurrency = _relative(
        {name: (done.running / done.requests + peaks.get(name, 0)) / 2 for name, done in active.items()}
    )
    intrinsic = _relative(
        {name: activity[name] * workload[name] * efficiency[name] * concurrency[name] for name in active}
    )
    collaboration = dict.fromkeys(active, 0.0)
    for (reuser, producer), edge in sharing.items():
        for name in (reuser, producer):
            if name in collaboration:
                collaboration[name] += edge.weight
    collaborative = _relative(collaboration)
    return {
        name: Contribution(
            activity[name],
            workload[name],
            efficiency[name],
            concurrency[name],
            intrinsic[name],
            collaborative[name],
            (1 - collaborative_weight) * intrinsic[name] + collaborative_weight * collaborative[name],
        )
        for name in active
    }


def _relative(values: Mapping[str, float]) -> dict[str, float]:
    largest = max(values.values(), default=0) or 1
    return {name: value / largest for name, value in values.items()}
