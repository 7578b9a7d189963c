"""Adaptive branching Monte Carlo tree search (AB-MCTS) over named states."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from hive_frontend.operation import Offer
from hive_frontend.operations.identity import Path
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Fire, State
from hive_frontend.supervisors.tree_search import TreeProgress, TreeSearch

Posterior = Literal["gaussian", "beta"]


@dataclass
class Rewards:
    """Some rewards, summed up: all that a posterior of their mean depends on."""

    count: int = 0
    """Rewards, without the failures."""
    mean: float = 0.0
    deviations: float = 0.0
    """Sum of the squared deviations from the mean."""
    failures: int = 0
    """States that gave no reward."""

    def add(self, reward: float | None) -> None:
        if reward is None:
            self.failures += 1
            return
        self.count += 1
        before = reward - self.mean
        self.mean += before / self.count
        self.deviations += before * (reward - self.mean)

    def scaled(self, lowest: float, highest: float) -> tuple[int, float, float]:
        """Return count, mean and squared deviations of all rewards, scaled to [0, 1]; those of failures are 0."""
        total = self.count + self.failures
        if not self.count:
            return total, 0.0, 0.0
        spread = highest - lowest
        mean = (self.mean - lowest) / spread if spread > 0 else 1.0
        deviations = self.deviations / spread**2 if spread > 0 else 0.0
        between = self.count * self.failures / total * mean**2
        return total, mean * self.count / total, deviations + between


@dataclass
class Node:
    """A node of the search tree, with the rewards that its decisions depend on."""

    state: State | None = None
    """None for the root, the parent of the initial state."""
    children: dict[Path, Node] = field(default_factory=dict)
    generated: Rewards = field(default_factory=Rewards)
    """Rewards of its children (GEN)."""
    continued: Rewards = field(default_factory=Rewards)
    """Rewards of what its children led to (CONT)."""
    firings: int = 0
    """Firings of the state so far."""
    below: Rewards = field(default_factory=Rewards)
    """Its own reward, and those of all nodes below it."""


@dataclass
class ABMCTSProgress(TreeProgress):
    result_ranks: list[float] = field(default_factory=list)
    """The ranks of all results so far. A rank is a negative reward; without a reward it is infinite."""
    finishing: bool = False
    """Whether the simulations are over; at most one state still runs on to its end."""
    random: Random = field(default_factory=Random)
    root: Node = field(default_factory=Node)
    options: dict[tuple[str, int], Rewards] = field(default_factory=dict)
    """Rewards that each option has led to, by the name of the state and the number of the option."""
    chosen: dict[Path, int] = field(default_factory=dict)
    """Of each simulation in flight that chose an option: the path of the first state it leads to, and the option."""


class ABMCTS(TreeSearch[ABMCTSProgress]):
    """Adaptive branching Monte Carlo tree search: each step goes wider or deeper, whichever promises more.

    The states named `branch_at` are the nodes of the tree. There is no branching factor. Each simulation starts at
    the root and decides at every node, by Thompson sampling, between GEN, a new child of this node, and CONT, one of
    its children, where it decides again:

    - GEN has the rewards of the node's children, CONT those of all nodes below its children. Each child has its own
      reward and those of all nodes below it (this is "node aggregation", the variant AB-MCTS-A of the paper).
    - From each of these a mean is drawn from its posterior, and the highest wins: first between GEN and CONT, then
      between the children. A node without children that can continue goes to GEN.
    - GEN fires the state. States with other names are fired once, up to the next node, result or dead end, whose
      reward is added to all nodes of its branch.

    If the state waits at a `choose`, GEN also takes the option with the highest draw. An option has the rewards of all
    children that it has led to, anywhere in the tree. Options may be models, prompts or plans.

    `posterior` is `"gaussian"` (normal and inverse chi-squared, with the prior of the paper: mean 0, variance 0.1, each
    worth one observation) or `"beta"` (with Jeffreys' prior). Both expect rewards from 0 to 1, so rewards are scaled by
    `bounds`, by default the lowest and the highest reward so far. The reward of a state is `reward(state)`, by default
    its score. Dead ends and states without a score count as the lowest.

    `workers` simulations run concurrently, as one round. They are drawn from the same posteriors. A large round makes
    the tree wider.

    The search ends after `simulations` simulations. Then, if an open state has a higher reward than all results and
    does not offer its result (`score(number, result)`), it runs on to its end, every state being fired once.

    Inoue, Misaki, Imajuku, Kuroki, Nakamura, Akiba: Wider or Deeper? Scaling LLM Inference-Time Compute with Adaptive
    Branching Tree Search, 2025.
    """

    def __init__(
        self,
        *,
        branch_at: str | Sequence[str],
        simulations: int,
        posterior: Posterior = "gaussian",
        bounds: tuple[float, float] | None = None,
        reward: Callable[[State], float | None] | None = None,
        workers: int = 1,
    ) -> None:
        super().__init__(branch_at, simulations, reward, workers)
        check = Check(self)
        self.posterior = check.choice("posterior", posterior, ("gaussian", "beta"))
        self.bounds = check.optional(check.range, "bounds", bounds)

    def begin(self) -> ABMCTSProgress:
        return ABMCTSProgress(random=Random(self.seed))

    def advance(self, state: State) -> Fire | None:
        return None if state.name in self.branch_at else Fire(state)

    def decide(self, progress: ABMCTSProgress, arrived: list[State]) -> Sequence[Decision]:
        if progress.finishing:
            return [self._once(progress, state) for state in arrived if state.kind == "waiting"]
        progress.result_ranks += [self._rank(state) for state in arrived if state.kind == "final"]
        return self._simulate(progress, arrived) or self._run_best_on(progress)

    def _simulate(self, progress: ABMCTSProgress, arrived: list[State]) -> list[Decision]:
        """Add the states of the last round to the tree, and start the next round; return nothing after the last."""
        for state in arrived:
            self._add(progress, state)
        root = next((node for node in progress.root.children.values() if _can_continue(node)), None)
        if root is None:
            return []
        times = min(self.workers, self.simulations - progress.simulations)
        progress.simulations += times
        return [self._generate(progress, self._select(progress, root)) for _ in range(times)]

    def _add(self, progress: ABMCTSProgress, state: State) -> None:
        """Add the last state of a simulation, or the initial state, to the tree."""
        path = [progress.root]
        for each in self.branch(state):
            path.append(path[-1].children.setdefault(each.path, Node(each)))
        reward = self._bounded_reward(progress, state)
        *above, parent, new = path
        new.below.add(reward)
        if parent.state is None:
            return
        parent.generated.add(reward)
        for node, child in zip(above, [*above[1:], parent], strict=True):
            node.continued.add(reward)
            child.below.add(reward)
        first = state.path[: len(parent.state.path) + 1]
        if (option := progress.chosen.pop(first, None)) is not None:
            progress.options[parent.state.name, option].add(reward)

    def _bounded_reward(self, progress: ABMCTSProgress, state: State) -> float | None:
        reward = self.reward_of(progress, state)
        if self.bounds is not None and reward is not None and not self.bounds[0] <= reward <= self.bounds[1]:
            raise Check(self).error(f"the reward of {state!r} is {reward}, outside of bounds={self.bounds}")
        return reward

    def _select(self, progress: ABMCTSProgress, node: Node) -> Node:
        """Return the node that a new child is to be generated from."""
        while children := [child for child in node.children.values() if _can_continue(child)]:
            if self._draw(progress, node.generated) >= self._draw(progress, node.continued):
                break
            node = children[self._best(progress, [child.below for child in children])]
        return node

    def _generate(self, progress: ABMCTSProgress, node: Node) -> Fire:
        state = node.state
        assert state is not None
        option = self._option(progress, state)
        if option is not None:
            progress.chosen[*state.path, node.firings] = option
        node.firings += 1
        return Fire(state, last=False, option=option)

    def _run_best_on(self, progress: ABMCTSProgress) -> list[Decision]:
        """Run the best open state on to its end, unless a result is as good or it offers its own."""
        progress.finishing = True
        ranks = [(self._rank(state), path) for path, state in progress.open.items()]
        rank, path = min(ranks, default=(math.inf, ()))
        if not path or any(known <= rank for known in progress.result_ranks):
            return []
        best = progress.open[path]
        return [] if isinstance(best.score, Offer) else [self._once(progress, best)]

    def _rank(self, state: State) -> float:
        reward = self.raw_reward(state)
        return math.inf if reward is None else -reward

    def _once(self, progress: ABMCTSProgress, state: State) -> Fire:
        return Fire(state, option=self._option(progress, state))

    def _option(self, progress: ABMCTSProgress, state: State) -> int | None:
        """Choose an option; None if the state has none."""
        known = progress.options
        arms = [known.setdefault((state.name, option), Rewards()) for option in range(state.options)]
        return self._best(progress, arms) if arms else None

    def _best(self, progress: ABMCTSProgress, arms: Iterable[Rewards]) -> int:
        draws = [self._draw(progress, arm) for arm in arms]
        return draws.index(max(draws))

    def _draw(self, progress: ABMCTSProgress, rewards: Rewards) -> float:
        """Draw a mean from the posterior, given some rewards."""
        lowest, highest = self.bounds or (progress.lowest, progress.highest)
        count, mean, deviations = rewards.scaled(lowest, highest)
        random = progress.random
        if self.posterior == "beta":
            return random.betavariate(0.5 + count * mean, 0.5 + count * (1 - mean))
        # Murphy: Probabilistic Machine Learning: Advanced Topics, 2023, section 3.4.3.3. The prior is worth one
        # observation, so 1 + count is both kappa and nu.
        weight = 1 + count
        squares = 0.1 + deviations + count / weight * mean**2
        precision = max(random.gammavariate(weight / 2, 2 / squares), sys.float_info.min)
        return random.gauss(count * mean / weight, 1 / math.sqrt(weight * precision))


def _can_continue(node: Node) -> bool:
    return node.state is not None and node.state.kind == "waiting"
