"""Answers that a client discards: their KV goes first, and only theirs."""

from __future__ import annotations

import gc
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.mem_cache.radix_cache import TreeNode

from sglang_patches.cache.radix_cache import subtree
from sglang_patches.scheduling import branches as module
from sglang_patches.scheduling.branches import Branches
from tests.sglang_patches.kv_pool import KvPool
from tests.sglang_patches.test_radix_cache import text

PAGES = (1, 4)


def answered(
    pool: KvPool, prompt: list[int], output: list[int], session: str | None = "s"
) -> TreeNode | None:
    """Return the last node of an answer."""
    req = pool.request(prompt, "a", session)
    assert pool.admit(req)
    for token in output:
        pool.decode(req, token)
    pool.finish(req)
    return req.hive.leaf


@pytest.mark.parametrize("page", PAGES)
def test_a_discarded_answer_is_evicted_first_and_its_prompt_is_not(page: int) -> None:
    pool = KvPool(1000, "density", page)
    prompt = text(0, 64)
    pool.run(text(9, 64), "a", "other")
    first, second = (answered(pool, prompt, text(number, 33)) for number in (1, 2))
    assert first is not None
    pool.cache.discard(first)
    pool.check()
    assert pool.evict(32) >= 32
    pool.check()
    assert first not in subtree(pool.cache.root_node)
    assert second in subtree(pool.cache.root_node)
    assert pool.resident(prompt) == pool.resident(text(9, 64)) == 64


@pytest.mark.parametrize("page", PAGES)
def test_what_others_use_is_not_discarded(page: int) -> None:
    pool = KvPool(1000, "density", page)
    prompt, output = text(0, 64), text(1, 33)
    shared = answered(pool, prompt, output)
    answered(pool, prompt + output[:32], text(3, 5), "other")
    continued = answered(pool, text(2, 64), text(4, 33))
    answered(pool, text(2, 64) + text(4, 32), text(5, 33))
    anonymous = answered(pool, text(6, 64), text(7, 33), None)
    before = {node.id: node.hive.session for node in subtree(pool.cache.root_node)[1:]}
    for node in (shared, continued, anonymous):
        pool.cache.discard(node)
    assert {node.id: node.hive.session for node in subtree(pool.cache.root_node)[1:]} == before
    pool.check()


def test_a_discarded_answer_that_is_used_again_stays() -> None:
    pool = KvPool(1000, "density")
    node = answered(pool, text(0, 40), text(1, 11))
    pool.cache.discard(node)
    pool.run(text(0, 40) + text(1, 10) + text(2, 5), "a", "s")
    pool.check()
    pool.run(text(3, 40), "a", "over")
    pool.end_session("over")
    pool.evict(10)
    assert pool.resident(text(0, 40) + text(1, 10)) == 50


def test_an_evicted_answer_is_forgotten() -> None:
    pool = KvPool(1000, "density")
    node = answered(pool, text(0, 40), text(1, 11))
    known = Branches()
    known.add("s", "a", 0, node)
    pool.evict(1000)
    pool.cache.discard(node)
    pool.check()
    del node
    gc.collect()
    assert known.take("s", "a", None) == []


def test_answers_are_found_by_state_part_and_sample() -> None:
    known, nodes = Branches(), [TreeNode() for _ in range(6)]
    for node, (state, sample) in zip(
        nodes, (("a", 0), ("a", 1), ("a/0", 0), ("a/0.1", 1), ("ab", 0), ("a/1", 1)), strict=True
    ):
        known.add("s", state, sample, node)
    assert known.take("t", "a", None) == []
    assert known.take("s", "a/0", None) == [nodes[2]]
    assert known.take("s", "a", 1) == [nodes[1], nodes[3], nodes[5]]
    assert known.take("s", "a", None) == [nodes[0]]
    assert known.take("s", "ab", 0) == [nodes[4]]
    assert known.take("s", "a", None) == []
    known.end_session("s")
    assert len(known) == 0


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_the_number_of_states_is_bounded(actions: list[tuple[str, str, bool]]) -> None:
    known, node = Branches(), TreeNode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_STATES", 5)
        for session, state, ends in actions:
            known.add(session, state, 0, node)
            if ends:
                known.end_session(session)
            else:
                found: Any = known.take(session, state, 0)
                assert found == [node]
            assert len(known) <= 5
            assert len(known) == sum(map(len, known._sessions.values()))
