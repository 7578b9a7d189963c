"""What a role is trained on."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """A question and its right answers, all of them equally good."""

    prompt: str
    """All that the model reads, as text."""
    answers: tuple[str, ...]
    """One of them at a time is trained on, drawn anew in every epoch."""
