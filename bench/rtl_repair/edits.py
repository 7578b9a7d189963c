"""The edits that a repair may consist of: each replaces the code of one line by a similar one.

Code is what a line holds besides its indentation and a comment at its end, which both stay.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Another code for one line."""

    line: int
    """Counted from 1."""
    text: str
    """The new code, without indentation."""


def editable_lines(source: str) -> tuple[int, ...]:
    """The lines for which there are `replacements`, in order."""
    raise NotImplementedError


def replacements(source: str, line: int) -> tuple[str, ...]:
    """What the code of a line may be replaced by: at most some 40 texts, none of them what stands there."""
    raise NotImplementedError


def apply(source: str, edit: Edit, *, strict: bool = False) -> str:
    """The source with the edit made.

    Raises `ValueError` for a line that does not exist or is not editable, and, if `strict`, for a text that is not
    one of the `replacements`.
    """
    raise NotImplementedError
