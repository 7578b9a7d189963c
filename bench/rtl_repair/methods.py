"""The ways to repair a bug that are compared: the same agents, without a search and under several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from examples.rtl_repair.agents import NOT_OFFERED, PATCH, Outcome, Rules, decision
from examples.rtl_repair.bugs import Bug
from examples.rtl_repair.designs import design
from hive import MCTS, BestOfN, Client, ModelError, Once, RunResult, Supervisor, TreeOfThoughts, Usage, arun

_WORKERS: Final = 4
"""Simulations of Monte Carlo tree search that run at once."""


class Method(StrEnum):
    """How patches are searched for."""

    DIRECT = "direct"
    """One patch."""
    WORKFLOW = "workflow"
    """One patch after the other in one session, no search: what is kept accumulates, what is undone is known."""
    BEST_OF_N = "best_of_n"
    """Patches of one and the same state."""
    TOT = "tot"
    """Tree of Thoughts over patches, by the share of failing checks."""
    MCTS = "mcts"
    """Monte Carlo tree search over patches, by the same."""


@dataclass(frozen=True)
class Shape:
    """How much a method may try."""

    branching: int = 4
    """Patches tried in one state."""
    breadth: int = 2
    """States that Tree of Thoughts keeps of a generation."""
    rounds: int = 2
    """Patches on top of each other, in searches."""

    @property
    def patches(self) -> int:
        """What Tree of Thoughts tries with these numbers, and so every method but `DIRECT`."""
        return self.branching * (1 + self.breadth * (self.rounds - 1))

    def budget(self, method: Method) -> int:
        """Patches that a method may try."""
        return 1 if method is Method.DIRECT else self.patches

    def supervisor(self, method: Method) -> Supervisor:
        """What turns the agents into the method."""
        match method:
            case Method.DIRECT | Method.WORKFLOW:
                return Once()
            case Method.BEST_OF_N:
                # In batches, so that like the others it stops when a patch repairs. What is repaired scores 0.
                return BestOfN(self.patches, at=PATCH, batch=min(self.branching, self.patches), target=0.0)
            case Method.TOT:
                return TreeOfThoughts(branch_at=PATCH, branching=self.branching, breadth=self.breadth)
            case Method.MCTS:
                return MCTS(
                    branch_at=PATCH,
                    simulations=self.patches,
                    branching=self.branching,
                    rollout="value",
                    workers=_WORKERS,
                    target=0.0,
                )

    def patches_in_a_row(self, method: Method) -> int:
        """How many patches one branch may try."""
        match method:
            case Method.DIRECT | Method.BEST_OF_N:
                return 1
            case Method.WORKFLOW:
                return self.patches
            case Method.TOT | Method.MCTS:
                return self.rounds


@dataclass(frozen=True)
class Attempt:
    """The outcome of one bug."""

    bug: Bug
    solved: bool
    patches: int
    """Patches tried, in all branches."""
    tokens_generated: int
    tokens_replayed: int
    wall_s: float
    agents: dict[str, Usage]


async def attempt(
    bug: Bug, method: Method, shape: Shape, model: Client, *, seed: int, lookups: int = 2
) -> Attempt:
    """Try to repair a bug. `lookups` is how often Decision may have something looked at before each patch."""
    result = await arun(
        decision,
        design(bug.design),
        [bug],
        Rules(patches=shape.patches_in_a_row(method), lookups=lookups),
        model=model,
        seed=seed,
        supervisor=shape.supervisor(method),
    )
    return Attempt(
        bug=bug,
        solved=result.best is not None,
        patches=_patches(result),
        tokens_generated=result.totals.tokens_generated,
        tokens_replayed=result.totals.tokens_replayed,
        wall_s=result.totals.wall_s,
        agents=result.totals.agents,
    )


async def session(
    bugs: Sequence[Bug], model: Client, *, rounds: int, seed: int, lookups: int = 2
) -> tuple[RunResult[Outcome], Outcome]:
    """One long session over bugs of one design, without a search: `rounds` patches, bug after bug.

    Decision keeps one dialogue for all of them. Raises `ModelError` when an answer is none of those offered.
    """
    rules = Rules(patches=rounds, lookups=lookups, keep_going=True)
    result = await arun(decision, design(bugs[0].design), bugs, rules, model=model, seed=seed)
    if result.value is None:
        # A session that keeps going has no other reason to fail.
        raise ModelError(NOT_OFFERED)
    return result, result.value


async def attempts(
    bugs: Sequence[Bug],
    method: Method,
    shape: Shape,
    model: Client,
    *,
    seed: int,
    sessions: int,
    lookups: int = 2,
) -> tuple[list[Attempt], float]:
    """Try to repair all bugs, `sessions` at once; also the seconds that it took."""
    slots = asyncio.Semaphore(sessions)

    async def one(number: int, bug: Bug) -> Attempt:
        async with slots:
            return await attempt(bug, method, shape, model, seed=seed + number, lookups=lookups)

    began = time.monotonic()
    done = await asyncio.gather(*(one(number, bug) for number, bug in enumerate(bugs)))
    return done, time.monotonic() - began


def _patches(result: RunResult[Outcome]) -> int:
    """How often the state `patch` was fired."""
    return sum(node.fired for node in result.tree.nodes if node.name == PATCH)
