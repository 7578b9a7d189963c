"""A town meeting: three agents with private histories read the same messages, each in an order of their own.

The texts (``town_meeting.json``) are written for this bench. Every message begins a turn and ends it, so that a
reader's prompt is a well-formed conversation in any order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.kv_segments.encoding import RealText

NEUTRAL_PREFIX = "<|im_start|>system\nYou take part in a town meeting.<|im_end|>\n"
"""What stands before a message that is encoded in a neutral context."""
NEWS = 0
"""Number of the message that is no agent's."""


@dataclass(frozen=True)
class Block:
    """A message as others place it."""

    tokens: tuple[int, ...]
    history: tuple[int, ...]
    """What stood before it where it was made; nothing before the news."""


@dataclass(frozen=True)
class Reader:
    """An agent who has heard all messages of a round, and is asked to answer."""

    round: int
    agent: int
    history: tuple[int, ...]
    blocks: tuple[Block, ...]
    """In the reader's order: the news, what he said himself, then the others from the next one on."""
    task: tuple[int, ...]

    @property
    def prompt(self) -> list[int]:
        """All of it, one after the other."""
        return [
            *self.history,
            *(token for block in self.blocks for token in block.tokens),
            *self.task,
        ]

    def spans(self) -> list[tuple[int, int]]:
        """Where the blocks are in the prompt."""
        places: list[tuple[int, int]] = []
        begin = len(self.history)
        for block in self.blocks:
            places.append((begin, begin + len(block.tokens)))
            begin += len(block.tokens)
        return places


@cache
def _texts() -> dict[str, Any]:
    texts: dict[str, Any] = json.loads((Path(__file__).parent / "town_meeting.json").read_text())
    return texts


def rounds() -> int:
    """How many rounds there are texts for."""
    return len(_texts()["rounds"])


def readers(number: int, encode: RealText) -> Sequence[Reader]:
    """The three readers of a round."""
    agents = _texts()["agents"]
    texts = _texts()["rounds"][number]
    histories = [
        tuple(
            encode(
                f"<|im_start|>system\nYou are {agent['persona']}. You take part in a town meeting.\n"
                f"Your private diary: {agent['diary']}<|im_end|>\n"
            )
        )
        for agent in agents
    ]
    names = ["News", *(agent["name"] for agent in agents)]
    said = [texts["news"], *texts["said"]]
    blocks = [
        Block(tuple(encode(f"<|im_start|>user\n{name}: {text}<|im_end|>\n")), history)
        for name, text, history in zip(names, said, [(), *histories], strict=True)
    ]
    return [
        Reader(
            round=number,
            agent=own,
            history=histories[own],
            blocks=(blocks[NEWS], *(blocks[1 + (own + step) % len(agents)] for step in range(len(agents)))),
            task=tuple(
                encode(
                    f"<|im_start|>user\n{agent['name']}, answer the others and say what you will do next and why."
                    "<|im_end|>\n<|im_start|>assistant\n"
                )
            ),
        )
        for own, agent in enumerate(agents)
    ]
