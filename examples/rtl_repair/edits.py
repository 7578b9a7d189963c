"""The edits that a repair may consist of: each replaces the code of one line by a similar one.

Code is what a line holds besides its indentation and a comment at its end, which both stay. The replacements of all
lines together are what a grammar holds a model to; among them is what undoes (nearly) every bug of `bugs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Final

from examples.rtl_repair.mutations import MENDING, MENDING_FIRST
from examples.rtl_repair.verilog import read, with_code

MOST: Final = 40
"""Replacements of a line."""


@dataclass(frozen=True)
class Edit:
    """Another code for one line."""

    line: int
    """Counted from 1."""
    text: str
    """The new code, without indentation and comment."""


def editable_lines(source: str) -> tuple[int, ...]:
    """The lines for which there are `replacements`, in order."""
    return tuple(line.number for line in read(source) if replacements(source, line.number))


@lru_cache(maxsize=4096)
def replacements(source: str, line: int) -> tuple[str, ...]:
    """What the code of a line may be replaced by: at most `MOST` texts, none of them what stands there.

    Of a line with more, each rule of `mutations.MENDING` gives some. There are none for a line that does not exist.
    """
    lines = read(source)
    if not 1 <= line <= len(lines):
        return ()
    place = lines[line - 1]
    # In turns, so that a rule with many answers does not crowd out the others.
    by_turns = (text for turn in zip_longest(*(rule(place) for rule in MENDING)) for text in turn)
    found = chain(chain.from_iterable(rule(place) for rule in MENDING_FIRST), by_turns)
    texts = dict.fromkeys(text for text in found if text not in (None, place.code))
    return tuple(texts)[:MOST]


def code(source: str, line: int) -> str:
    """The code of a line: what `replacements` would replace. Raises `ValueError` for a line that does not exist."""
    lines = read(source)
    if not 1 <= line <= len(lines):
        raise ValueError(f"there is no line {line}; the source has {len(lines)}")
    return lines[line - 1].code


def apply(source: str, edit: Edit) -> str:
    """The source with the edit made.

    Raises `ValueError` for a line that does not exist or has no `replacements`, and for a text of several lines.
    """
    old = code(source, edit.line)
    if not replacements(source, edit.line):
        raise ValueError(f"line {edit.line} is not editable: {old!r}")
    if "\n" in edit.text:
        raise ValueError(f"the text of an edit is one line: {edit.text!r}")
    return with_code(source, edit.line, edit.text)
