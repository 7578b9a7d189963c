"""What a role is trained on, and what it is asked."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """A question and its right answers, all of them equally good."""

    prompt: str
    """All that the model reads, as text."""
    answers: tuple[str, ...]
    """One of them at a time is trained on, drawn anew in every epoch."""
    then: Example | None = None
    """What comes next in the same text: its prompt is what the model reads after the answer."""


class Question(NamedTuple):
    """A prompt with its possible answers."""

    prompt: str
    options: tuple[str, ...]
    right: frozenset[str]
    """Those of the options that are right; at least one."""
