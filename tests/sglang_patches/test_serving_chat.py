"""Where the tokens of an earlier dialogue and those of its text part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_patches.http.chat_template import splice

PIECES = [None, "a", "b", "ab", "ba", "c", "abc", "<e>"]
"""The vocabulary, by token; the first one has no spelling."""


def spell(ids: list[int]) -> list[str | None]:
    return [PIECES[token] for token in ids]


def text_of(ids: list[int]) -> str:
    return "".join(PIECES[token] or "?" for token in ids)


@pytest.mark.parametrize(
    ("prefix", "ids", "kept", "used"),
    [
        ([], [1, 2], 0, 0),
        ([1, 2], [1, 2, 5], 2, 2),
        # The model cut "abab" in another way, and ended it.
        ([3, 1, 2, 7], [3, 3, 7, 5], 4, 3),
        # It wrote more than the text has: a stop string was taken away.
        ([3, 1, 2, 5], [3, 3, 7], 3, 2),
        # The text ends within a token of the model's.
        ([3, 6], [3, 3, 7], 1, 1),
        # Where the model's token ends, no token of the text does.
        ([1, 2], [3, 7], 2, 1),
        ([1], [3, 7], 0, 0),
        # Another dialogue.
        ([5, 5], [1, 2], 0, 0),
        # A token that stands for no text.
        ([1, 0, 2], [1, 2], 1, 1),
    ],
)
def test_examples(prefix: list[int], ids: list[int], kept: int, used: int) -> None:
    assert splice(prefix, ids, spell) == (kept, used)


tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


@given(tokens, tokens.filter(lambda ids: 0 not in ids))
def test_the_text_is_unchanged(prefix: list[int], ids: list[int]) -> None:
    kept, used = splice(prefix, ids, spell)
    assert text_of(prefix[:kept] + ids[used:]) == text_of(ids)
    more = [
        (k, u)
        for k in range(kept + 1, len(prefix) + 1)
        for u in range(len(ids) + 1)
        if 0 not in prefix[:k] and text_of(prefix[:k]) == text_of(ids[:u])
    ]
    assert not more
