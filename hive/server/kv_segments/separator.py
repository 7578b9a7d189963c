"""Segments in text: a reserved separator says where they begin and end, and the model never sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

SEPARATOR = "<|hive:segment|>"
"""What is between two of them is a segment; what is before the first one, and behind the last one, is not."""


def split(text: str, encode: Callable[[str, bool], Sequence[int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of a text with separators, and which of them are segments.

    Parts are tokenised one by one, so a segment has the same tokens wherever it is.

    Args:
        text: with any number of separators.
        encode: tokens of a part, and whether it is the beginning, where models may want a token of their own.

    Returns:
        Tokens without separators, and for each segment the index of its first token and that behind its last one.
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
