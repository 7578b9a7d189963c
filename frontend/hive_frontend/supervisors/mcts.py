"""Monte Carlo tree search over named states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from hive_frontend.operations.identity import Path
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Fire, State
from hive_frontend.supervisors.tree_search import TreeProgress, TreeSearch


@dataclass
class Node:
    """A node of the search tree, with the statistics of the simulations through it."""

    state: State | None = None
    """None for the root, the parent of the initial states."""
    children: dict[Path, Node] = field(default_factory=dict)
    visits: int = 0
    """Finished simulations through this node."""
    failures: int = 0
    """Finished simulations through this node that gave no reward."""
    rewards: float = 0.0
    """Sum of the rewards of the other finished simulations."""
    pending: int = 0
    """Simulations through this node that are in flight (virtual loss)."""
    firings: int = 0
    """Simulations in flight that expand this node itself."""


@dataclass
class MCTSProgress(TreeProgress):
    root: Node = field(default_factory=Node)
    in_flight_paths: list[list[Node]] = field(default_factory=list)
    """Per simulation in flight, its nodes from the root to the expanded one."""
    rising: list[list[Node]] = field(default_factory=list)
    """The nodes from the root to each new node of the last round that has a higher reward than its parent."""
    reached: int = 0
    """Results with a reward of at least the target."""


class MCTS(TreeSearch[MCTSProgress]):
    """Monte Carlo tree search with UCT over the states named `branch_at`, which are the nodes of the tree.

    Each simulation has four steps:

    - Selection: starting at the root, go to the child with the highest upper confidence bound. The bound is the
      child's mean reward, scaled to [0, 1] by the lowest and the highest reward so far, plus `exploration` times
      the square root of ln(visits of the parent) / visits of the child. Selection stops at the first node that
      may have another child: by default one with fewer than `branching` children.
    - Expansion: fire the state of that node once more, which makes a new child.
    - Rollout: fire every following state once. With `rollout="to_end"`, continue to a result or a dead end; states
      named `branch_at` on the way become nodes too. With `rollout="value"`, stop at the next state named
      `branch_at` and use its reward as the estimate. If that is higher than the reward of the state before, the next
      simulation continues from there instead of selecting a node, so that the search gets to results.
    - Backpropagation: add the reward to every node on the path.

    The reward of a state is `reward(state)`, by default its score. Dead ends, and states without a score or with
    -inf, count as the lowest reward so far. A simulation that selects a result or a dead end again fires nothing and
    backpropagates its reward once more.

    `widening=(k, alpha)` turns on progressive widening: a node with n visits may have k * n^alpha children, but at
    least 1. `branching`, if given, is then the upper limit.

    `workers` simulations run concurrently, as one round. Each simulation in flight counts as a visit without a
    reward (virtual loss), which makes the others select different paths. A round has fewer simulations if all
    allowed expansions are in flight. Backpropagation waits for the whole round, so the search does not depend on
    which simulation finishes first.

    The search ends after `simulations` simulations, or after the round in which `limit` results have reached a
    reward of at least `target`.

    UCT: Kocsis, Szepesvári: Bandit Based Monte-Carlo Planning, 2006. Progressive widening: Coulom: Computing Elo
    Ratings of Move Patterns in the Game of Go, 2007. Virtual loss: Chaslot, Winands, van den Herik: Parallel
    Monte-Carlo Tree Search, 2008.
    """

    def __init__(
        self,
        *,
        branch_at: str | Sequence[str],
        simulations: int,
        branching: int | None = None,
        exploration: float = math.sqrt(2),
        widening: tuple[float, float] | None = None,
        rollout: Literal["to_end", "value"] = "to_end",
        reward: Callable[[State], float | None] | None = None,
        workers: int = 1,
        target: float | None = None,
        limit: int = 1,
    ) -> None:
        super().__init__(branch_at, simulations, reward, workers)
        check = Check(self)
        self.widening = check.optional(_widening(check), "widening", widening)
        self.branching = check.optional(check.count, "branching", branching)
        if self.branching is None and self.widening is None:
            self.branching = 5
        self.exploration = check.number("exploration", exploration, least=0)
        self.rollout = check.choice("rollout", rollout, ("to_end", "value"))
        self.target = check.optional(check.number, "target", target)
        self.limit = check.count("limit", limit)

    def begin(self) -> MCTSProgress:
        return MCTSProgress()

    def advance(self, state: State) -> Fire | None:
        if state.name not in self.branch_at:
            return Fire(state)
        is_root = sum(state.visits.get(name, 0) for name in self.branch_at) == 1
        return None if is_root or self.rollout == "value" else Fire(state, last=self.branching == 1)

    def decide(self, progress: MCTSProgress, arrived: list[State]) -> Sequence[Decision]:
        for finished in progress.in_flight_paths:
            finished[-1].firings = 0
            for node in finished:
                node.pending = 0
        progress.in_flight_paths = []
        progress.rising = []
        for arrival in arrived:
            self._add(progress, arrival)
        if progress.reached >= self.limit:
            return []
        decisions: list[Decision] = []
        while progress.simulations < self.simulations and len(decisions) < self.workers:
            path = progress.rising.pop() if progress.rising else self._select(progress)
            state = path[-1].state
            if state is None or (state.kind == "waiting" and not self._may_grow(path[-1])):
                break  # All expansions that are allowed now are in flight.
            progress.simulations += 1
            if state.kind == "waiting":
                decisions.append(self._expand(progress, path, state))
            else:
                self._backpropagate(path, self.reward_of(progress, state))
        return decisions

    def _add(self, progress: MCTSProgress, state: State) -> None:
        """Add the last state of a simulation, or an initial state, to the tree."""
        path = [progress.root]
        for each in self.branch(state):
            path.append(path[-1].children.setdefault(each.path, Node(each)))
        is_initial = len(path) == 2
        if is_initial and state.kind == "waiting":
            return
        reward = self.reward_of(progress, state)
        if state.kind == "final" and self.target is not None and reward is not None:
            progress.reached += reward >= self.target
        if is_initial:
            return
        self._backpropagate(path, reward)
        if self.rollout == "value" and state.kind == "waiting" and self._has_risen(reward, path[-2].state):
            progress.rising.append(path)

    def _has_risen(self, reward: float | None, before: State | None) -> bool:
        last = None if before is None else self.raw_reward(before)
        return reward is not None and (last is None or reward > last)

    def _backpropagate(self, path: list[Node], reward: float | None) -> None:
        for node in path:
            node.visits += 1
            if reward is None:
                node.failures += 1
            else:
                node.rewards += reward

    def _select(self, progress: MCTSProgress) -> list[Node]:
        """Return the nodes from the root to the node to expand."""
        path = [progress.root]
        while (node := path[-1]).children and not self._may_grow(node):
            # Children are in the order of their firings; ties go to the first.
            path.append(max(node.children.values(), key=partial(self._upper_bound, progress, node)))
        return path

    def _may_grow(self, node: Node) -> bool:
        return (
            node.state is not None
            and node.state.kind == "waiting"
            and len(node.children) + node.firings < self._capacity(node)
        )

    def _capacity(self, node: Node) -> float:
        capacity = math.inf if self.branching is None else self.branching
        if self.widening is not None:
            k, alpha = self.widening
            capacity = min(capacity, max(1, math.floor(k * node.visits**alpha)))
        return capacity

    def _upper_bound(self, progress: MCTSProgress, parent: Node, child: Node) -> float:
        visits = child.visits + child.pending
        if not visits:
            return math.inf
        rewarded = child.visits - child.failures
        spread = progress.highest - progress.lowest
        scaled = (
            (child.rewards - progress.lowest * rewarded) / spread if rewarded and spread > 0 else rewarded
        )
        return scaled / visits + self.exploration * math.sqrt(
            math.log(parent.visits + parent.pending) / visits
        )

    def _expand(self, progress: MCTSProgress, path: list[Node], state: State) -> Fire:
        progress.in_flight_paths.append(path)
        path[-1].firings += 1
        for node in path:
            node.pending += 1
        return Fire(state, last=len(path[-1].children) + path[-1].firings == self.branching)


def _widening(check: Check) -> Callable[[str, Any], tuple[float, float]]:
    def rule(setting: str, value: Any) -> tuple[float, float]:
        if not isinstance(value, tuple) or len(value) != 2:
            raise check.error(f"{setting} must be a pair (k, alpha), not {value!r}")
        k, alpha = value
        return check.number(f"{setting}'s k", k, least=0), check.number(f"{setting}'s alpha", alpha, least=0)

    return rule
