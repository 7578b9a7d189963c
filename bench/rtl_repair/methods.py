"""The ways to repair a bug that are compared: the same agents, without a search and under several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from examples.random_model import random_model
from examples.rtl_repair.agents import NOT_OFFERED, PATCH, Outcome, Rules, decision
from examples.rtl_repair.bugs import Bug
from examples.rtl_repair.designs import design
from hive import MCTS, BestOfN, Client, ModelError, Once, RunResult, Supervisor, TreeOfThoughts, arun

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


async def repair(
    bug: Bug, *, method: Method, shape: Shape, model: Client | None, seed: int, lookups: int = 2
) -> RunResult[Outcome]:
    """Try to repair a bug; without a model with random patches, of which looking at things makes no better ones.

    `lookups` is how often Decision may have something looked at before each patch.
    """
    return await arun(
        decision,
        design(bug.design),
        [bug],
        Rules(patches=shape.patches_in_a_row(method), lookups=lookups if model else 0),
        model=model or random_model(),
        seed=seed,
        supervisor=shape.supervisor(method),
    )


def scores(_: Bug, result: RunResult[Outcome]) -> dict[str, int]:
    """Whether a bug was repaired, and how many patches were tried, in all branches."""
    tried = sum(node.fired for node in result.tree.nodes if node.name == PATCH)
    return {"solved": result.best is not None, "patches": tried}


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
