"""The ways to play that are compared: the same program, straight on and under several searches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from hive_frontend import Client, Once, RunResult, Supervisor, arun

from examples.game24.players import PROPOSER, Player
from examples.game24.program import STEPS, Algorithm, game24, supervisor_of
from examples.game24.puzzles import Puzzle
from examples.game24.random_baseline import random_model


class Method(StrEnum):
    """How a solution is looked for."""

    DIRECT = "direct"
    """One game, each step the likeliest one."""
    BEST_OF_N = "best_of_n"
    """Games next to each other."""
    TOT = "tot"
    """Tree of Thoughts, by what the valuer says of positions."""
    MCTS = "mcts"
    """Monte Carlo tree search, by the same."""


_ALGORITHMS = {
    Method.BEST_OF_N: Algorithm.BEST_OF_N,
    Method.TOT: Algorithm.TOT,
    Method.MCTS: Algorithm.MCTS,
}


@dataclass(frozen=True)
class Shape:
    """How much a method may try, and how; the same for every player and for the random baseline."""

    branching: int = 5
    """Proposals for one position."""
    breadth: int = 3
    """Positions that Tree of Thoughts keeps of a generation."""
    votes: int = 1
    """Words of the valuer on one position; their worth adds up to its score."""
    temperature: float = 0.7
    """Of the proposals, in searches."""
    distinct: bool = True
    """Whether a search draws the proposals for a position without replacement."""

    @property
    def proposals(self) -> int:
        """What Tree of Thoughts proposes with these numbers, and at the most any search."""
        return self.branching * (1 + self.breadth * (STEPS - 1))

    def budget(self, method: Method) -> int:
        """Proposals that a method may make for a puzzle."""
        return STEPS if method is Method.DIRECT else self.proposals

    def supervisor(self, method: Method) -> Supervisor:
        """What turns the program into the method."""
        if method is Method.DIRECT:
            return Once()
        return supervisor_of(
            _ALGORITHMS[method],
            branching=self.branching,
            breadth=self.breadth,
            proposals=self.proposals,
        )

    def votes_of(self, method: Method) -> int:
        """Words of the valuer that a method needs for each position: none where nothing is decided by them."""
        return self.votes if method in (Method.TOT, Method.MCTS) else 0

    def temperature_of(self, method: Method) -> float:
        """Of a method's proposals."""
        return 0.0 if method is Method.DIRECT else self.temperature

    def distinct_in(self, method: Method) -> bool:
        """Whether a method draws proposals without replacement; where each is the likeliest, none is drawn."""
        return self.distinct and method is not Method.DIRECT


async def play(
    puzzle: Puzzle, *, method: Method, shape: Shape, player: Player, model: Client | None, seed: int
) -> RunResult[list[str]]:
    """Search for a solution of a puzzle; without a model with random answers."""
    return await arun(
        game24,
        puzzle.numbers,
        shape.votes_of(method),
        player,
        shape.temperature_of(method),
        model=model or random_model(distinct=shape.distinct_in(method)),
        seed=seed,
        supervisor=shape.supervisor(method),
    )


def scores(_: Puzzle, result: RunResult[list[str]]) -> dict[str, int]:
    """Whether a search solved its puzzle, and what it proposed."""
    return {
        "solved": result.best is not None,
        "proposals": result.totals.agents[PROPOSER].requests,
        "duplicates": _duplicates(result),
    }


def _duplicates(result: RunResult[list[str]]) -> int:
    """How many proposals came again for the same question."""
    asked = {
        node.id: node.prompts[0] for node in result.tree.nodes if node.name == "propose" and node.prompts
    }
    answers: dict[str, list[str]] = defaultdict(list)
    for node in result.tree.nodes:
        if node.parent in asked:
            answers[asked[node.parent]].append(node.replies[0])
    return sum(len(texts) - len(set(texts)) for texts in answers.values())
