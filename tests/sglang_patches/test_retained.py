"""Hints about sessions in the radix cache: retained KV stays, within the quota."""

from __future__ import annotations

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from hive.server.eviction.hints import Hint
from tests.sglang_patches.kv_pool import KvPool
from tests.sglang_patches.test_radix_cache import text


def turn(pool: KvPool, number: int, tokens: int, session: str, now: float) -> None:
    """Run a request of a session that comes and goes at a time."""
    req = pool.request(text(number, tokens), "a", session)
    req.hive.arrived_at = now
    assert pool.admit(req)
    pool.finish(req)
    pool.cache.departed(req, now, None)


@pytest.mark.parametrize(("tokens", "stays"), [(200, True), (300, False)])
def test_retained_kv_stays_within_the_quota_until_its_time_is_over(tokens: int, stays: bool) -> None:
    pool = KvPool(1000, "density")
    turn(pool, 0, tokens, "kept", 1.0)
    pool.cache.hint("kept", Hint("human", retain=100.0), 1.0)
    for number in range(1, 12):
        # Sessions that return soon, so that one that has been idle for longer is worth less.
        for again in (0.0, 0.5):
            turn(pool, number, 150, f"s{number}", 1.0 + number + again)
        pool.check()
    assert (pool.resident(text(0, tokens)) == tokens) is stays
    for number in range(12, 30):
        for again in (0.0, 0.5):
            turn(pool, number, 150, f"s{number}", 100.0 + number + again)
    assert pool.resident(text(0, tokens)) < tokens


def test_a_discarded_session_is_no_longer_retained() -> None:
    pool = KvPool(1000, "density")
    turn(pool, 0, 200, "kept", 1.0)
    pool.cache.hint("kept", Hint(retain=100.0), 1.0)
    pool.cache.hint("kept", Hint(discard=True), 2.0)
    for number in range(1, 8):
        turn(pool, number, 150, f"s{number}", 2.0 + number)
    pool.check()
    assert pool.resident(text(0, 200)) == 0


def test_an_observed_end_does_not_replace_what_the_client_said() -> None:
    pool = KvPool(1000, "density")
    turn(pool, 0, 100, "s", 1.0)
    pool.cache.hint("s", Hint("subagent"), 1.0)
    pool.cache.observed("s", "tool", 1.0)
    pool.cache.observed("gone", "tool", 1.0)
    turn(pool, 1, 100, "t", 1.0)
    pool.cache.observed("t", "tool", 2.0)
    sessions = pool.cache.accounting._sessions
    assert [sessions[name].latest.event for name in ("s", "t")] == ["subagent", "tool"]
