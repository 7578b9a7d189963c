"""Game of 24 by search: a whole program. `python -m examples.game24` runs it:

    python -m examples.game24 --url http://localhost:30000
    python -m examples.game24 --url http://localhost:30000 --search mcts
    python -m examples.game24 --url http://localhost:30000 --roles

The agent below plays one game as if there were only one way to play it. The supervisor in its decorator makes a
search of it. Two agents appear at the server: the `proposer` writes steps, held to the rules by a grammar, and the
`valuer` judges positions in words. The program computes, and checks, exactly.

`--search` puts the same program, unchanged, under another supervisor: Tree of Thoughts (`tot`), Monte Carlo tree
search (`mcts`) or best-of-n (`best-of-n`), with a like number of proposals for each. `--roles` asks two adapters that
were trained for the game instead of the model itself; `python -m bench.game24` compares all of these.

The command prints what the search solved next to what the same search solves with random answers.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from examples.game24 import prompts
from examples.game24.players import PROPOSER, VALUER, Player
from examples.game24.rules import (
    Numbers,
    RuleError,
    Step,
    apply_step,
    describe,
    is_solved,
    parse_step,
    show,
    step_regex,
)
from hive import MCTS, BestOfN, Supervisor, TreeOfThoughts, agent, fail, gen, score

STEPS: Final = 3
"""Steps from four numbers to one: what a game costs that is played straight on."""
BRANCHING: Final = 5
BREADTH: Final = 3
VOTES: Final = 3
PROPOSALS: Final = 35
"""What Tree of Thoughts proposes with these settings: 5 for the puzzle, then 3 * 5 and 3 * 5."""
WORKERS: Final = 4
"""Simulations of Monte Carlo tree search that run at once."""


@agent(supervisor=TreeOfThoughts(branch_at="propose", branching=BRANCHING, breadth=BREADTH))
async def game24(
    numbers: Numbers, votes: int = VOTES, player: Player = Player.BASE, temperature: float = 1.0
) -> list[str]:
    """Play one game; returns its steps, or fails. `temperature` is that of the proposals."""
    steps: list[str] = []
    while len(numbers) > 1:
        proposal = await gen(
            player.propose(numbers),
            name="propose",
            agent=PROPOSER,
            raw=True,
            regex=step_regex(numbers),
            stop="=",
            max_tokens=32,
            temperature=temperature,
        )
        step = legal_step(numbers, proposal)
        steps.append(describe(numbers, step))
        numbers = apply_step(numbers, step)
        if len(numbers) > 1:
            question = player.judge(numbers)
            worth = 0.0
            # One vote after the other: the first makes the model read the position, the others are drawn
            # from what the server's Logits Cache kept of that.
            for _ in range(votes):
                word = await gen(
                    question,
                    name="value",
                    agent=VALUER,
                    raw=isinstance(question, str),
                    choices=list(prompts.WORTH),
                    max_tokens=8,
                    temperature=1.0,
                )
                worth += prompts.WORTH.get(word, 0.0)
            score(worth)
    if not is_solved(numbers):
        fail(f"ends in {show(numbers)}")
    return steps


def legal_step(numbers: Numbers, text: str) -> Step:
    """The step that the model wrote. A server that does not know grammars may let it write nonsense."""
    try:
        step = parse_step(text)
        apply_step(numbers, step)
    except RuleError as error:
        fail(str(error))
    return step


class Algorithm(Enum):
    """What may be said to `--search`."""

    TOT = "tot"
    MCTS = "mcts"
    BEST_OF_N = "best-of-n"


def supervisor_of(search: Algorithm, *, branching: int, breadth: int, proposals: int) -> Supervisor:
    """The supervisor of a search. Tree of Thoughts has a shape, the others have a number of proposals."""
    match search:
        case Algorithm.TOT:
            return TreeOfThoughts(branch_at="propose", branching=branching, breadth=breadth)
        case Algorithm.MCTS:
            # Each simulation makes one proposal and takes the valuer's word for the position that it leads to;
            # the reward of a dead end is the worst seen. The first solution, whatever its score, ends the search.
            return MCTS(
                branch_at="propose",
                simulations=proposals,
                branching=branching,
                rollout="value",
                # A little: three steps deep is where solutions are, and there are few proposals to get there.
                exploration=0.3,
                workers=WORKERS,
                target=0.0,
            )
        case Algorithm.BEST_OF_N:
            return BestOfN(max(1, proposals // STEPS))
