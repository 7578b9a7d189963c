"""Three programs with models that need no GPU, under several supervisors with the same number of model calls."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable
from itertools import pairwise

from examples.game24.puzzles import puzzles
from examples.game24.rules import Numbers, apply_step, is_solved, legal_steps, parse_step, show, solvable
from hive import (
    ABMCTS,
    MCTS,
    Beam,
    BestOfN,
    Budget,
    Request,
    Supervisor,
    TreeOfThoughts,
    agent,
    fail,
    gen,
    run,
    score,
)
from hive.testing import FunctionModel

CALLS = 60
"""Model calls that a search may make."""
MOVES: dict[str, Callable[[int], int]] = {
    "+ 7": lambda n: n + 7,
    "- 5": lambda n: n - 5,
    "* 3": lambda n: n * 3,
    "* 2": lambda n: n * 2,
}
WORDS = ["sea", "tree", "be", "see", "night", "light", "stone", "alone", "wave", "grave", "day", "way"]


@agent
async def ladder(target: int) -> list[str]:
    """The program of the tutorial: from 1 to a target in at most 6 moves, scored by the distance."""
    number = 1
    moves: list[str] = []
    while number != target:
        if len(moves) == 6:
            fail(f"ends at {number}")
        move = await gen(f"From {number} to {target}.", name="step", choices=list(MOVES))
        number = MOVES[move](number)
        moves.append(str(move))
        score(-abs(target - number))
    return moves


@agent
async def game24(numbers: Numbers) -> list[str]:
    """Game of 24, scored by an exact solver: whether the position can still be won."""
    steps: list[str] = []
    while len(numbers) > 1:
        step = await gen(show(numbers), name="step", choices=[str(step) for step in legal_steps(numbers)])
        numbers = apply_step(numbers, parse_step(step))
        steps.append(str(step))
        score(solvable(numbers))
    if not is_solved(numbers):
        fail("not 24")
    return steps


@agent
async def couplet(seed: int) -> list[str]:
    """Six words, scored by a noisy judge on the way, and exactly at the end."""
    words: list[str] = []
    for _ in range(6):
        words.append(str(await gen(f"After {words}.", name="step", choices=WORDS)))
        score(_worth(words) + random.Random(f"{words} {seed}").gauss(0, 0.7))
    score(_worth(words))
    return words


def _worth(words: list[str]) -> int:
    """Count the neighbours that rhyme, and those of which the second is longer."""
    pairs = list(pairwise(words))
    return sum(a[-2:] == b[-2:] for a, b in pairs) + sum(len(a) < len(b) for a, b in pairs)


def at_random(request: Request) -> str:
    assert request.sampling.choices
    return random.Random(f"{request.seed} {request.sample}").choice(request.sampling.choices)


def fair(request: Request) -> str:
    """Take the move that leads closest to the target, half of the time."""
    if random.Random(f"half {request.seed} {request.sample}").random() < 0.5:
        return at_random(request)
    number, target = map(int, re.findall(r"-?[0-9]+", request.text))
    return min(MOVES, key=lambda move: abs(target - MOVES[move](number)))


def supervisors(target: float) -> dict[str, Supervisor]:
    """Return the searches to compare. `target` is the score of a solution, which ends those that can end early."""
    return {
        "BestOfN": BestOfN(CALLS // 3, target=target, batch=1),
        "TreeOfThoughts": TreeOfThoughts(branch_at="step", branching=4, breadth=3),
        "Beam": Beam(at="step", width=3, expand=4, cumulative=False),
        "MCTS to_end": MCTS(branch_at="step", simulations=CALLS, branching=4, target=target),
        "MCTS value": MCTS(branch_at="step", simulations=CALLS, branching=4, rollout="value", target=target),
        "MCTS value, exploration=0.3": MCTS(
            branch_at="step", simulations=CALLS, branching=4, rollout="value", target=target, exploration=0.3
        ),
        "ABMCTS": ABMCTS(branch_at="step", simulations=CALLS - 6),
    }


def measure(problems: int) -> dict[str, tuple[float, float, float]]:
    """Return, by supervisor: the share of ladders and of puzzles solved, and the mean score of the couplets."""
    rows = {}
    budget = Budget(calls=CALLS)
    chosen = puzzles(600, 600 + problems)
    for name in supervisors(0):
        solved, won, scores = 0, 0, []
        for seed in range(problems):
            zero, six = supervisors(0)[name], supervisors(6)[name]
            climbed = run(
                ladder,
                20 + seed % 40,
                model=FunctionModel(fair),
                seed=seed,
                supervisor=zero,
                budget=budget,
                stop_at=0,
            )
            solved += bool(climbed.results)
            puzzle = chosen[seed].numbers
            played = run(
                game24, puzzle, model=FunctionModel(at_random), seed=seed, supervisor=zero, budget=budget
            )
            won += bool(played.results)
            rhymed = run(
                couplet, seed, model=FunctionModel(at_random), seed=seed, supervisor=six, budget=budget
            )
            scores.append(rhymed.results[0].score or 0 if rhymed.results else 0)
        rows[name] = (solved / problems, won / problems, statistics.fmean(scores))
    return rows
