"""Monte Carlo tree search over named states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.operations.identity import Path
from hive_frontend.supervisors.searcher import Books, Searcher, lineage
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Fire, State


@dataclass
class Node:
    """A state of the search tree, with what simulations through it were worth."""

    state: State | None = None
    """None for the node above the initial states."""
    children: dict[Path, Node] = field(default_factory=dict)
    visits: int = 0
    """Simulations that went through here."""
    failures: int = 0
    """Those without a reward."""
    rewards: float = 0.0
    """Sum of the rewards of the others."""
    pending: int = 0
    """Simulations through here that are in flight: virtual losses."""
    firings: int = 0
    """Those of them that fire this very state."""


@dataclass
class MonteCarloBooks(Books):
    root: Node = field(default_factory=Node)
    simulations: int = 0
    """Begun so far."""
    in_flight_trails: list[list[Node]] = field(default_factory=list)
    lowest: float = math.inf
    """Least reward seen."""
    highest: float = -math.inf
    reached: int = 0
    """Results that reached the target."""


class MCTS(Searcher[MonteCarloBooks]):
    """Monte Carlo tree search by UCT: the states called `branch_at` are the tree, and good ones are fired again.

    One simulation goes down from the root, always to the child with the highest upper confidence bound: its mean
    reward, scaled to [0, 1] by the least and the highest reward seen, plus `exploration` times the square root of
    ln(visits of the parent) / visits. The first state on the way that has fewer than `branching` children is
    fired once more, which is what makes a new child. From there the rollout fires every state once. With
    `rollout="to_end"` it goes on to a result or a dead end, and the states to branch at that it passes become
    nodes of the tree; with `rollout="value"` it stops at the next state to branch at and takes that one's word
    for it, so that a short search may end without any result. The reward then counts for every node on the way.

    A state is worth `reward(state)`, by default its score. A dead end, and what has no score or -inf, is worth as
    little as the worst seen. A simulation that goes down to a result or dead end again counts without firing.

    `widening=(k, alpha)` lets the number of children grow with the number of visits, as k * visits^alpha (at
    least 1); `branching` then bounds it, if given.

    `workers` simulations run at once. So that they do not all go the same way, each that is in flight counts as
    a simulation without a reward (virtual loss); a round is shorter where everything worth trying is in flight.
    Rewards are counted when all of a round are there, so the search does not depend on which came first.

    The search ends after `simulations`, or in the round in which `limit` results have a reward of at least
    `target`.

    Kocsis, Szepesvári: Bandit Based Monte-Carlo Planning, 2006. Widening: Coulom: Computing Elo Ratings of Move
    Patterns in the Game of Go, 2007. Virtual loss: Chaslot, Winands, van den Herik: Parallel Monte-Carlo Tree
    Search, 2008.
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
        check = Check(self)
        self.branch_at = check.names("branch_at", branch_at)
        self.simulations = check.count("simulations", simulations)
        self.widening = check.optional(_widening(check), "widening", widening)
        self.branching = check.optional(check.count, "branching", branching)
        if self.branching is None and self.widening is None:
            self.branching = 5
        self.exploration = check.number("exploration", exploration, least=0)
        self.rollout = check.choice("rollout", rollout, ("to_end", "value"))
        self.reward = check.optional(check.function, "reward", reward)
        self.workers = check.count("workers", workers)
        self.target = check.optional(check.number, "target", target)
        self.limit = check.count("limit", limit)

    def check(self, graph: FlowGraph) -> None:
        Check(self).known(graph, "branch_at", *self.branch_at)

    def begin(self) -> MonteCarloBooks:
        return MonteCarloBooks()

    def go_on(self, state: State) -> Fire | None:
        if state.name not in self.branch_at:
            return Fire(state)
        is_root = sum(state.visits.get(name, 0) for name in self.branch_at) == 1
        return None if is_root or self.rollout == "value" else Fire(state, last=self.branching == 1)

    def decide(self, books: MonteCarloBooks, arrived: list[State]) -> Sequence[Decision]:
        for finished in books.in_flight_trails:
            finished[-1].firings = 0
            for node in finished:
                node.pending = 0
        books.in_flight_trails = []
        for arrival in arrived:
            self._grow(books, arrival)
        if books.reached >= self.limit:
            return []
        decisions: list[Decision] = []
        while books.simulations < self.simulations and len(decisions) < self.workers:
            trail = self._descend(books)
            state = trail[-1].state
            if state is None or (state.kind == "waiting" and not self._may_grow(trail[-1])):
                break  # All children that it may have are in flight.
            books.simulations += 1
            if state.kind == "waiting":
                decisions.append(self._expand(books, trail, state))
            else:
                self._count(books, trail, self._reward(state))
        return decisions

    def _grow(self, books: MonteCarloBooks, state: State) -> None:
        """Enter what a simulation led to, or an initial state."""
        trail = [books.root]
        for on_the_way in lineage(state):
            if on_the_way is state or on_the_way.name in self.branch_at:
                trail.append(trail[-1].children.setdefault(on_the_way.path, Node(on_the_way)))
        is_initial = len(trail) == 2
        if is_initial and state.kind == "waiting":
            return
        reward = self._reward(state)
        if state.kind == "final" and self.target is not None and reward is not None:
            books.reached += reward >= self.target
        if not is_initial:
            self._count(books, trail, reward)

    def _reward(self, state: State) -> float | None:
        reward = None if state.kind == "dead" else self.reward(state) if self.reward else state.score
        if reward is None or reward == -math.inf:
            return None
        if not math.isfinite(reward):
            raise Check(self).error(
                f"the reward of a state must be finite or -inf; that of {state!r} is {reward}"
            )
        return reward

    def _count(self, books: MonteCarloBooks, trail: list[Node], reward: float | None) -> None:
        if reward is not None:
            books.lowest = min(books.lowest, reward)
            books.highest = max(books.highest, reward)
        for node in trail:
            node.visits += 1
            if reward is None:
                node.failures += 1
            else:
                node.rewards += reward

    def _descend(self, books: MonteCarloBooks) -> list[Node]:
        """The nodes from the root down to the one to simulate from."""
        trail = [books.root]
        while (node := trail[-1]).children and not self._may_grow(node):
            # Children are in the order of their firings, and the first of equals is taken.
            trail.append(max(node.children.values(), key=partial(self._bound, books, node)))
        return trail

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

    def _bound(self, books: MonteCarloBooks, parent: Node, child: Node) -> float:
        visits = child.visits + child.pending
        if not visits:
            return math.inf
        rewarded = child.visits - child.failures
        spread = books.highest - books.lowest
        scaled = (child.rewards - books.lowest * rewarded) / spread if rewarded and spread > 0 else rewarded
        return scaled / visits + self.exploration * math.sqrt(
            math.log(parent.visits + parent.pending) / visits
        )

    def _expand(self, books: MonteCarloBooks, trail: list[Node], state: State) -> Fire:
        books.in_flight_trails.append(trail)
        trail[-1].firings += 1
        for node in trail:
            node.pending += 1
        return Fire(state, last=len(trail[-1].children) + trail[-1].firings == self.branching)


def _widening(check: Check) -> Callable[[str, Any], tuple[float, float]]:
    def rule(setting: str, value: Any) -> tuple[float, float]:
        if not isinstance(value, tuple) or len(value) != 2:
            raise check.error(f"{setting} must be a pair (k, alpha), not {value!r}")
        k, alpha = value
        return check.number(f"{setting}'s k", k, least=0), check.number(f"{setting}'s alpha", alpha, least=0)

    return rule
