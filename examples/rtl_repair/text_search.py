"""Search by words over sources, specifications and the Verilog reference: BM25 over paragraphs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

REFERENCE: Final = Path(__file__).parent / "reference"

_SATURATION: Final = 1.2
"""BM25's k1: how much a word counts that appears again and again."""
_LENGTH: Final = 0.4
"""BM25's b: how much long paragraphs are held against them."""
_MOST_LINES: Final = 24
"""Longer paragraphs are cut: code may have no blank line."""

_WORD: Final = re.compile(r"[A-Za-z]+|\d+")


@dataclass(frozen=True)
class Passage:
    """A paragraph that was found."""

    source: str
    """The key of its text."""
    line: int
    """Its first line, counted from 1."""
    text: str
    score: float


@lru_cache(maxsize=1)
def reference() -> Mapping[str, str]:
    """The Verilog reference: its files by name."""
    return {file.name: file.read_text() for file in sorted(REFERENCE.glob("*.md"))}


def search(query: str, texts: Mapping[str, str], limit: int = 3) -> tuple[Passage, ...]:
    """The paragraphs that fit the query best, best first; fewer than `limit` when fewer share a word with it."""
    paragraphs = [
        (source, line, text, Counter(words(text)))
        for source, whole in texts.items()
        for line, text in _paragraphs(whole)
    ]
    if not paragraphs:
        return ()
    mean = sum(counts.total() for *_, counts in paragraphs) / len(paragraphs)
    containing = Counter(word for *_, counts in paragraphs for word in counts)
    wanted = dict.fromkeys(words(query))

    def score(counts: Counter[str]) -> float:
        total = 0.0
        for word in wanted:
            if count := counts[word]:
                rarity = math.log(1 + (len(paragraphs) - containing[word] + 0.5) / (containing[word] + 0.5))
                damping = _SATURATION * (1 - _LENGTH + _LENGTH * counts.total() / mean)
                total += rarity * count * (_SATURATION + 1) / (count + damping)
        return total

    found = [Passage(source, line, text, score(counts)) for source, line, text, counts in paragraphs]
    found = [passage for passage in found if passage.score > 0]
    # The sort is stable: of equals, the first in the texts comes first.
    return tuple(sorted(found, key=lambda passage: -passage.score)[:limit])


def words(text: str) -> list[str]:
    """The words of a text or of code, in lower case and singular; `writePointer_next` is three words."""
    parts = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    return [_singular(word.lower()) for word in _WORD.findall(parts)]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """What stands between blank lines, with the number of its first line.

    Headings go with what follows them, and so does a paragraph that ends with a colon; fenced code is not split.
    """
    start, block, fenced = 0, list[str](), False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.strip():
            start = start if block else number
            block.append(line)
            fenced ^= line.startswith("```")
        leads_on = bool(block) and (block[-1].startswith("#") or block[-1].endswith(":"))
        ends = not line.strip() and not fenced and not leads_on
        if block and (ends or len(block) == _MOST_LINES):
            yield start, "\n".join(block)
            block = []
    if block:
        yield start, "\n".join(block)
