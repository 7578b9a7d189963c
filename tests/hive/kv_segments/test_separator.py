"""Text with separators."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.kv_segments.separator import SEPARATOR, split

BEGINNING = 1


def encode(text: str, beginning: bool) -> list[int]:
    """A token for each character, as numbers above that of the beginning."""
    return [BEGINNING] * beginning + [ord(character) + 2 for character in text]


def text_of(tokens: list[int]) -> str:
    return "".join(chr(token - 2) for token in tokens if token != BEGINNING)


@given(st.lists(st.text("abc<|>:", max_size=5), min_size=1, max_size=6))
def test_all_parts_but_the_first_and_the_last_are_segments(parts: list[str]) -> None:
    text = SEPARATOR.join(parts)
    # Parts may make separators of their own where they meet others.
    parts = text.split(SEPARATOR)
    tokens, spans = split(text, encode)
    assert text_of(tokens) == "".join(parts)
    assert tokens.count(BEGINNING) == 1
    assert tokens[0] == BEGINNING
    assert [text_of(tokens[start:end]) for start, end in spans] == [part for part in parts[1:-1] if part]
    behind = 1
    for start, end in spans:
        assert behind <= start < end <= len(tokens)
        behind = end


def test_a_segment_has_the_same_tokens_wherever_it_is() -> None:
    first = split(f"a{SEPARATOR}one{SEPARATOR}b", encode)
    second = split(f"{SEPARATOR}{SEPARATOR}one{SEPARATOR}", encode)
    assert first == ([1, *encode("a", False), *encode("oneb", False)], [(2, 5)])
    assert second == ([1, *encode("one", False)], [(1, 4)])


@pytest.mark.parametrize(
    ("text", "tokens"), [("", [1]), ("ab", encode("ab", True)), (f"a{SEPARATOR}b", encode("ab", True))]
)
def test_without_two_separators_there_is_no_segment(text: str, tokens: list[int]) -> None:
    assert split(text, encode) == (tokens, [])


def test_a_part_without_tokens_is_none() -> None:
    assert split(f"a{SEPARATOR}b{SEPARATOR}c", lambda part, first: [9] * (part != "b")) == ([9, 9], [])
