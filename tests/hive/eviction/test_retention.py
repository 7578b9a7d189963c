"""Retained KV: for as long as it was asked for, within the quota, and no tenant at another's expense."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.agents.tenant import qualified, split
from hive.server.eviction import retention
from hive.server.eviction.retention import Retention

CAPACITY = 1000
NAMES = st.builds(qualified, st.sampled_from([None, "red", "blue"]), st.sampled_from("abcdef"))
ACTIONS = st.lists(st.tuples(NAMES, st.integers(0, 10), st.integers(0, 5)), max_size=40)
"""Sessions, for how long each is to be retained, and how much time passes before."""


def test_a_session_is_retained_until_its_time_is_over() -> None:
    kept = Retention(0.25)
    kept.retain("s", 10, now=5)
    kept.retain("t", 2, now=5)
    kept.retain("t", 20, now=6)
    assert kept.retained(lambda _: 100, CAPACITY, now=14.9) == {"s", "t"}
    assert kept.retained(lambda _: 100, CAPACITY, now=15) == {"t"}
    kept.retain("t", 0, now=16)
    assert kept.retained(lambda _: 100, CAPACITY, now=16) == frozenset()
    assert len(kept) == 0


def test_sessions_that_do_not_fit_are_passed_over() -> None:
    kept = Retention(0.25)
    tokens = {"a": 100, "b": 200, "c": 150, "d": 1}
    for name in tokens:
        kept.retain(name, 10, now=0)
    assert kept.retained(tokens.__getitem__, CAPACITY, now=1) == {"a", "c"}


def test_each_tenant_has_an_equal_part() -> None:
    kept = Retention(0.25)
    for number in range(10):
        kept.retain(f"red|{number}", 10, now=0)
    kept.retain("blue|0", 10, now=0)
    kept.retain("alone", 5, now=0)
    counts = Counter(split(name)[0] for name in kept.retained(lambda _: 40, CAPACITY, now=1))
    assert counts == {"red": 2, "blue": 1, None: 1}
    counts = Counter(split(name)[0] for name in kept.retained(lambda _: 40, CAPACITY, now=6))
    assert counts == {"red": 3, "blue": 1}


def test_who_asks_for_too_many_loses_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_RETAINED", 4)
    kept = Retention()
    kept.retain("blue|0", 10, now=0)
    for number in range(10):
        kept.retain(f"red|{number}", 10, now=0)
        assert len(kept) <= 4
    assert kept.retained(lambda _: 1, CAPACITY, now=1) == {"blue|0", "red|7", "red|8", "red|9"}


@given(ACTIONS, st.integers(1, 4), st.floats(0, 1), st.dictionaries(NAMES, st.integers(0, 300)))
def test_the_quota_holds_and_nothing_expires_early(
    actions: list[tuple[str, int, int]], limit: int, share: float, tokens: dict[str, int]
) -> None:
    kept, twin = Retention(share), Retention(share)
    asked: dict[str, int] = {}
    now = 0

    def tokens_of(name: str) -> int:
        return tokens.get(name, 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "MAX_RETAINED", limit)
        for name, seconds, passed in actions:
            now += passed
            asked[name] = now + seconds
            for one in (kept, twin):
                one.retain(name, seconds, now)
            chosen = kept.retained(tokens_of, CAPACITY, now)
            assert len(kept) <= limit
            assert all(asked[name] > now for name in chosen)
            used: Counter[Any] = Counter()
            for name in chosen:
                used[split(name)[0]] += tokens_of(name)
            assert used.total() <= share * CAPACITY + 1e-6
    assert twin.retained(tokens_of, CAPACITY, now) == kept.retained(tokens_of, CAPACITY, now), "on all ranks"
