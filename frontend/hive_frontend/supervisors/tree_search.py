"""What the Monte Carlo tree searches have in common: their settings, and the rewards of states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.supervisors.searcher import Searcher, SearchProgress, lineage
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import State


@dataclass
class TreeProgress(SearchProgress):
    """The progress of a tree search. A subclass adds the tree."""

    simulations: int = 0
    """Simulations started so far."""
    lowest: float = math.inf
    """Lowest reward so far."""
    highest: float = -math.inf
    """Highest reward so far."""


T = TypeVar("T", bound=TreeProgress)


class TreeSearch(Searcher[T]):
    """A search in `simulations` simulations over the states named `branch_at`, which are the nodes of a tree.

    The reward of a state is `reward(state)`, by default its score. `workers` simulations run as one round.
    """

    def __init__(
        self,
        branch_at: str | Sequence[str],
        simulations: int,
        reward: Callable[[State], float | None] | None,
        workers: int,
    ) -> None:
        check = Check(self)
        self.branch_at = check.names("branch_at", branch_at)
        self.simulations = check.count("simulations", simulations)
        self.reward = check.optional(check.function, "reward", reward)
        self.workers = check.count("workers", workers)

    def check(self, graph: FlowGraph) -> None:
        Check(self).known(graph, "branch_at", *self.branch_at)

    def branch(self, state: State) -> list[State]:
        """Return the nodes on the branch of `state`, and `state` itself as the last."""
        return [each for each in lineage(state) if each is state or each.name in self.branch_at]

    def raw_reward(self, state: State) -> float | None:
        """Return the reward of a state; None if it is dead, has no score, or scores -inf."""
        reward = None if state.kind == "dead" else self.reward(state) if self.reward else state.score
        if reward is None or reward == -math.inf:
            return None
        if not math.isfinite(reward):
            raise Check(self).error(
                f"the reward of a state must be finite or -inf; the reward of {state!r} is {reward}"
            )
        return reward

    def reward_of(self, progress: T, state: State) -> float | None:
        """Return the reward of a state, and take it into account for the lowest and the highest reward."""
        if (reward := self.raw_reward(state)) is None:
            return None
        progress.lowest = min(progress.lowest, reward)
        progress.highest = max(progress.highest, reward)
        return reward
