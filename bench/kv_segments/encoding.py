"""Texts as token ids: by a model's tokenizer, or random ids where only their number counts.

All arms are sent ids, so that the same message has the same tokens in each of them: a text that is put together from
generated pieces can be cut differently than the pieces were, and the baseline would then reuse less than it could.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHARACTERS_PER_TOKEN = 4
"""Of a header in English, about."""
_TAG = re.compile(r"<\|[a-z_]+\|>")
FIRST_ID = 100
"""Ids below it are often special ones."""


class Encoding(Protocol):
    """How a message's text becomes tokens."""

    def __call__(self, text: str, name: str) -> list[int]:
        """Token ids, at least one; ``name`` is that of the call (see `examples.choreography.workflows`)."""
        ...


class RealText:
    """By the ``tokenizer.json`` of a model's folder."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def __call__(self, text: str, name: str = "") -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


@dataclass(frozen=True)
class RandomTokens:
    """Random ids, for servers without a tokenizer or models with random weights: the same text, the same ids.

    System prompts and problems have given lengths, headers about that of their text.
    """

    vocabulary: int
    system_tokens: int
    problem_tokens: int

    def __call__(self, text: str, name: str) -> list[int]:
        if name.startswith("system"):
            length = self.system_tokens
        elif name == "problem":
            length = self.problem_tokens
        else:
            # Each tag of the chat markup is one token.
            plain, tags = _TAG.subn("", text)
            length = max(1, tags + round(len(plain) / CHARACTERS_PER_TOKEN))
        return random.Random(text).choices(range(FIRST_ID, self.vocabulary), k=length)
