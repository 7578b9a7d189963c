"""The workloads: states of Game of 24, sampled again and again.

``resample`` is the paper's setup: long outputs of fixed length.  ``sharpened`` is the same at lower temperatures,
which is what a surer model looks like to a cache: softmax(s * logits / T) is the distribution at T / s.  ``search``
has the shape of real search: short thoughts that end at a line break, with a grammar or without.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from examples.game24 import prompts
from examples.game24.puzzles import COUNT, TEST_SET, puzzles
from examples.game24.rules import Numbers, step_regex

WorkloadName = Literal["resample", "sharpened", "search"]
WORKLOADS: tuple[WorkloadName, ...] = get_args(WorkloadName)

SHARPENED_FROM = 1.0
"""Temperature that the sharpened workload divides."""
THOUGHT_TOKENS = 32
"""A thought that has not ended by then is cut; a proposal line of the rules takes about ten."""
RANDOM_PROMPT_TOKENS = 192
"""Length of a prompt of random ids: about that of a proposal prompt."""
RANDOM_THOUGHT_TOKENS = 10
"""Fixed length of a thought where there is no text, hence no line break."""

RANDOM_TEXT_TOKENS = 50_000
DOCS = Path(__file__).parents[2] / "docs"
"""Long text in English that is at hand."""


DrawName = Literal["plain", "top_p", "top_k"]
DRAWS: Final[Mapping[DrawName, Mapping[str, float]]] = {
    "plain": {},
    "top_p": {"top_p": 0.95},
    "top_k": {"top_k": 50},
}
"""Sampling parameters, beside the temperature."""


class Variant(NamedTuple):
    """How samples are drawn, and by which model."""

    draw: DrawName = "plain"
    adapter: str | None = None
    """None is the model itself."""

    @property
    def label(self) -> str:
        return self.draw + (f", adapter {self.adapter}" if self.adapter else "")


@dataclass(frozen=True, slots=True)
class State:
    """A prompt to sample from, and the grammar of the line that follows."""

    name: str
    input_ids: tuple[int, ...]
    regex: str | None


@dataclass(frozen=True, slots=True)
class Block:
    """All samples of some states under one setting; every arm gets the same."""

    workload: WorkloadName
    temperature: float
    concurrency: int
    """States in flight; the samples of a state follow one another."""
    max_tokens: int
    """Length of every output; an upper bound in ``search``."""
    states: int
    samples: int
    """Samples per state, the first, which finds nothing in any cache, included."""
    grammar: bool = False
    sharpness: float = 1.0
    """What the base temperature was divided by to get ``temperature``."""

    @property
    def label(self) -> str:
        grammar = " with grammar" if self.grammar else ""
        return f"{self.workload}{grammar}, T={self.temperature:g}, concurrency {self.concurrency}"


@dataclass(frozen=True)
class Prompts:
    """Where states come from."""

    test: Sequence[State]
    unseen: Sequence[State]
    """States that no workload uses: for measuring requests that find nothing."""
    text: Sequence[int]
    """Tokens of something long, of which nothing is in any state."""
    has_text: bool
    """Whether the server detokenizes, so that stop strings and grammars work."""


def game24_prompts(model: Path, count: int) -> Prompts:
    """``count`` states of the test set and all others as unseen ones, tokenized with the model's tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def state(rank: int, numbers: Numbers) -> State:
        ids = tuple(tokenizer.encode(prompts.propose(numbers)).ids)
        # The operation is the model's choice, and so is the result, right or wrong.
        return State(f"rank-{rank}", ids, f"({step_regex(numbers)}) [0-9]{{1,4}}(/[0-9]{{1,3}})?\n")

    # In an order of their own: the ranks are in order of difficulty, and a short run takes the first few.
    order = random.Random(0)
    ranked = puzzles(0, COUNT)
    chosen = order.sample(list(TEST_SET), len(TEST_SET))
    others = [rank for rank in range(COUNT) if rank not in TEST_SET]
    order.shuffle(others)
    return Prompts(
        test=[state(rank, ranked[rank].numbers) for rank in chosen[:count]],
        unseen=[state(rank, ranked[rank].numbers) for rank in others],
        text=tokenizer.encode("\n".join(page.read_text() for page in sorted(DOCS.glob("*.md")))).ids,
        has_text=True,
    )


def random_prompts(vocabulary: int, count: int) -> Prompts:
    """States of random token ids, for servers without a tokenizer.  ``vocabulary`` is the number of token ids."""
    order = random.Random(0)

    def state(index: int) -> State:
        ids = tuple(order.randrange(vocabulary) for _ in range(RANDOM_PROMPT_TOKENS))
        return State(f"random-{index}", ids, None)

    states = [state(index) for index in range(count + COUNT)]
    text = order.choices(range(vocabulary), k=RANDOM_TEXT_TOKENS)
    return Prompts(test=states[:count], unseen=states[count:], text=text, has_text=False)


def seed_of(workload: str, state: State, sample: int) -> int:
    """The seed of a sample, the same in every arm, at every temperature and on every machine: 31 bits."""
    digest = hashlib.blake2b(f"{workload}/{state.name}/{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def sampling_params(block: Block, state: State, sample: int, has_text: bool) -> dict[str, Any]:
    """``sampling_params`` of a sample, less what an arm adds."""
    params: dict[str, Any] = {
        "temperature": block.temperature,
        "max_new_tokens": block.max_tokens,
        "sampling_seed": seed_of(block.workload, state, sample),
        # One chunk with the first token and one with the end: streaming that costs no arm anything.
        "stream_interval": block.max_tokens + 1,
    }
    if block.workload != "search" or not has_text:
        return {**params, "ignore_eos": True}
    if block.grammar:
        params["regex"] = state.regex
    return {**params, "stop": "\n"}
