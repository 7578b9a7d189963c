"""Segments in text, marked by a reserved separator that the model never sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

SEPARATOR = "<|hive:segment|>"
"""Text between two separators is a segment; text before the first or behind the last one is not."""


def split(text: str, encode: Callable[[str, bool], Sequence[int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the tokens of a text with separators, and the spans of its segments.

    Parts are tokenised separately, so a segment has the same tokens wherever it occurs.

    Args:
        text: with any number of separators.
        encode: takes a part and whether it is the first one, which may need a BOS token; returns its tokens.

    Returns:
        The tokens without separators, and for each segment the index of its first token and that behind its last one.
    """
    parts = text.split(SEPARATOR)
    tokens: list[int] = []
    spans: list[tuple[int, int]] = []
    for at, part in enumerate(parts):
        start = len(tokens)
        if part or at == 0:
            tokens += encode(part, at == 0)
        if 0 < at < len(parts) - 1 and len(tokens) > start:
            spans.append((start, len(tokens)))
    return tokens, spans
