"""The program that is measured: a small search, and everything about it that all arms share.

Four steps, one model call each. Every state is sampled four times, the four best states of a step are expanded. The
model is a function, and its answer depends on the prompt and on the number of the sample alone, so arms that
search alike find alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from hive_frontend.client.contract import Request, Sampling
from hive_frontend.client.messages import Message
from hive_frontend.operations.identity import Path, call_seed, state_id

from hive import Completion, TreeOfThoughts, agent, gen, score
from hive.testing import FunctionModel

STEPS = 4
BRANCHING = 4
BREADTH = 4
CALLS = BRANCHING + (STEPS - 1) * BREADTH * BRANCHING
"""Model calls of one search."""
MAX_TOKENS = 16
TASK = "climb"


class Found(NamedTuple):
    """A result of a search."""

    value: str
    score: float


class Thought(NamedTuple):
    """A state of the search, for the arms that do their own accounting."""

    path: Path
    steps: tuple[str, ...]
    score: float


ROOT = Thought((0,), (), 0.0)


def prompt(task: str, steps: Sequence[str]) -> str:
    """What the model is asked after `steps`."""
    return f"Task: {task}. Steps so far: {', '.join(steps) or 'none'}. Write the next step."


def worth(step: str) -> float:
    return float(int(step) % 101)


@agent(supervisor=TreeOfThoughts(branch_at="step", branching=BRANCHING, breadth=BREADTH, limit=None))
async def climb(task: str, length: int = STEPS) -> str:
    """The program as a user of Hive writes it."""
    steps: list[str] = []
    while len(steps) < length:
        step = await gen(prompt(task, steps), name="step", max_tokens=MAX_TOKENS)
        steps.append(str(step))
        score(worth(step))
    return " ".join(steps)


_SAMPLING = Sampling(max_tokens=MAX_TOKENS)


def requests(task: str, thought: Thought, seed: int, session: str) -> list[Request]:
    """The calls that expand a state: exactly those that Hive makes, for arms that make them by hand.

    What is the same for all of them is computed once.
    """
    messages = (Message("user", prompt(task, thought.steps)),)
    base, state = call_seed(seed, thought.path, "0"), state_id(thought.path)
    return [
        Request(messages, _SAMPLING, base, climb.name, session, state, sample, None, "step")
        for sample in range(BRANCHING)
    ]


def next_thought(thought: Thought, sample: int, answer: str) -> Thought:
    """The state that an answer leads to."""
    return Thought((*thought.path, sample), (*thought.steps, answer), worth(answer))


def best_first(thoughts: Sequence[Thought]) -> list[Thought]:
    """States, the best score first."""
    return sorted(thoughts, key=lambda thought: (-thought.score, thought.path))


def found(thoughts: Sequence[Thought]) -> list[Found]:
    """The results that final states are, best first."""
    return [Found(" ".join(thought.steps), thought.score) for thought in best_first(thoughts)]


def answer(request: Request) -> Completion:
    number = crc32(f"{request.messages[-1].content}|{request.sample}".encode())
    return Completion(str(number), 1, 0, "stop")


def model(*, suspends: bool) -> FunctionModel:
    """The model: it answers at once, or lets the event loop go round once first, as any network does."""
    if not suspends:
        return FunctionModel(answer)

    async def later(request: Request) -> Completion:
        await asyncio.sleep(0)
        return answer(request)

    return FunctionModel(later)
