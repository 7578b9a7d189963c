"""The game of `examples.game24` as one writes it without a frontend: plain functions on asyncio.

Prompts, grammars, settings and seeds are those of the program on Hive's frontend, played by the roles, and so are the
rules of the searches. All votes on a position are asked for at once, which is the quickest way without a cache that
could answer the second one from the first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from hive_frontend.client import Sampling, sample_seed
from hive_frontend.operations.identity import Path, call_seed

from bench.game24.methods import Method, Shape
from bench.peers.sglang_client import Draw, Question
from examples.game24 import prompts
from examples.game24.players import PROPOSER, VALUER
from examples.game24.program import STEPS
from examples.game24.rules import Numbers, RuleError, apply_step, is_solved, parse_step, step_regex

_WORDS = Sampling(choices=tuple(prompts.WORTH)).grammar


def proposal(numbers: Numbers, temperature: float) -> Question:
    settings = {"temperature": temperature, "stop": ["="], "max_new_tokens": 32, "regex": step_regex(numbers)}
    return Question(prompts.propose_role(numbers), settings, PROPOSER)


def judgement(numbers: Numbers) -> Question:
    settings: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 8, "regex": _WORDS}
    return Question(prompts.value_role(numbers), settings, VALUER)


class Thought(NamedTuple):
    """A state of the search."""

    path: Path
    """As Hive numbers states: seeds derive from it."""
    numbers: Numbers
    worth: float = 0.0


def root(numbers: Numbers) -> Thought:
    return Thought((0,), numbers)


def best_first(thoughts: Sequence[Thought]) -> list[Thought]:
    """In the order in which Tree of Thoughts keeps them."""
    return sorted(thoughts, key=lambda thought: (-thought.worth, thought.path))


def solved(thoughts: Sequence[Thought]) -> bool:
    """Whether one of them has made 24."""
    return any(is_solved(thought.numbers) for thought in thoughts)


class Player(NamedTuple):
    """A search of one puzzle by one method."""

    draw: Draw
    method: Method
    shape: Shape
    seed: int

    async def expand(self, thought: Thought, samples: Sequence[int]) -> list[Thought]:
        """The thoughts that proposals lead to, judged, without illegal ones; `samples` are the proposals' numbers."""
        base = call_seed(self.seed, thought.path, "0")
        texts = await self.draw(
            proposal(thought.numbers, self.shape.temperature_of(self.method)),
            [sample_seed(base, sample) for sample in samples],
        )
        judged = await asyncio.gather(
            *(self._judged(thought, sample, text) for sample, text in zip(samples, texts, strict=True))
        )
        return [each for each in judged if each is not None]

    async def _judged(self, thought: Thought, sample: int, text: str) -> Thought | None:
        try:
            numbers = apply_step(thought.numbers, parse_step(text))
        except RuleError:
            return None
        path = (*thought.path, sample)
        votes = self.shape.votes_of(self.method)
        if len(numbers) == 1 or not votes:
            return Thought(path, numbers)
        seeds = [call_seed(self.seed, (*path, *(0,) * vote), "0") for vote in range(votes)]
        words = await self.draw(judgement(numbers), seeds)
        worth = sum(prompts.WORTH.get(word, 0.0) for word in words)
        return Thought((*path, *(0,) * votes), numbers, worth)

    async def search(self, numbers: Numbers) -> bool:
        """Whether the method finds a solution.

        Raises `ValueError` when it is not one of those that were written by hand.
        """
        match self.method:
            case Method.TOT:
                return await self._tree_of_thoughts(numbers)
            case Method.BEST_OF_N:
                return await self._best_of_n(numbers)
        raise ValueError(f"{self.method} is not written by hand")

    async def _tree_of_thoughts(self, numbers: Numbers) -> bool:
        """Breadth-first: the best positions of a generation are kept and expanded."""
        generation = [root(numbers)]
        for _ in numbers[1:]:
            kept = best_first(generation)[: self.shape.breadth]
            grown = await asyncio.gather(
                *(self.expand(thought, range(self.shape.branching)) for thought in kept)
            )
            generation = list(itertools.chain.from_iterable(grown))
        return solved(generation)

    async def _best_of_n(self, numbers: Numbers) -> bool:
        """Whole games side by side, whose first proposals are samples of one state."""

        async def rest(thought: Thought) -> list[Thought]:
            going = [thought]
            while going and len(going[0].numbers) > 1:
                going = await self.expand(going[0], [0])
            return going

        games = max(1, self.shape.budget(self.method) // STEPS)
        begun = await self.expand(root(numbers), range(games))
        return solved(list(itertools.chain.from_iterable(await asyncio.gather(*map(rest, begun)))))
