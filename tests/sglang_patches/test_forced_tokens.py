"""Tokens that a grammar dictates: found without changing the matcher, and only where there is no choice."""

from __future__ import annotations

from random import Random

import pytest
import xgrammar
from hypothesis import given
from hypothesis import strategies as st

from sglang_patches.scheduling.forced_tokens import MAX_FORCED, forced_tokens

VOCABULARY = ["<end>", *"abcdefghijklmnopqrstuvwxyz ", "ab", "sure", "likely", "im", "possible"]
END = 0
INFO = xgrammar.TokenizerInfo(VOCABULARY, vocab_size=40, stop_token_ids=[END])
COMPILER = xgrammar.GrammarCompiler(INFO)


def ids(*tokens: str) -> list[int]:
    return [VOCABULARY.index(token) for token in tokens]


def matcher_of(regex: str) -> xgrammar.GrammarMatcher:
    return xgrammar.GrammarMatcher(COMPILER.compile_regex(regex), max_rollback_tokens=200)


@pytest.mark.parametrize(
    ("regex", "drawn", "forced"),
    [
        # A whole word leaves the stop token only.
        ("sure|likely|impossible", ["sure"], ["<end>"]),
        # "im" may go on with "p" or "possible".
        ("sure|likely|impossible", ["im"], []),
        ("a[xy]", ["a"], []),
        ("a[xy]z", ["a", "x"], ["z", "<end>"]),
        ("a[xy]z+", ["a", "x"], ["z"]),
        ("(ax|bx)y", ["a"], ["x", "y", "<end>"]),
    ],
)
def test_what_is_forced(regex: str, drawn: list[str], forced: list[str]) -> None:
    matcher = matcher_of(regex)
    *accepted, last = ids(*drawn)
    for token in accepted:
        assert matcher.accept_token(token)
    assert forced_tokens(matcher, last, INFO.vocab_size) == ids(*forced)
    # The matcher is where it was.
    assert matcher.accept_token(last)


def test_the_look_ahead_is_bounded() -> None:
    assert len(forced_tokens(matcher_of("a" + "z" * 100), ids("a")[0], INFO.vocab_size)) == MAX_FORCED


def test_an_output_that_ended_or_does_not_fit_forces_nothing() -> None:
    matcher = matcher_of("ab")
    assert forced_tokens(matcher, ids("z")[0], INFO.vocab_size) == []
    for token in ids("ab", "<end>"):
        assert matcher.accept_token(token)
    assert forced_tokens(matcher, END, INFO.vocab_size) == []


@given(st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=5), st.randoms())
def test_forced_tokens_are_the_only_ones_at_every_position(words: list[str], random: Random) -> None:
    matcher = matcher_of("|".join(words))
    while not matcher.is_terminated():
        allowed = _allowed(matcher)
        token = random.choice(allowed)
        forced = forced_tokens(matcher, token, INFO.vocab_size)
        assert matcher.accept_token(token)
        ahead = matcher.fork()
        for only in forced:
            assert _allowed(ahead) == [only]
            ahead.accept_token(only)
        assert ahead.is_terminated() or len(_allowed(ahead)) > 1


def _allowed(matcher: xgrammar.GrammarMatcher) -> list[int]:
    mask = xgrammar.allocate_token_bitmask(1, INFO.vocab_size)
    if not matcher.fill_next_token_bitmask(mask, 0):
        return list(range(len(VOCABULARY)))
    return [token for token in range(len(VOCABULARY)) if int(mask[0, token // 32]) >> (token % 32) & 1]
