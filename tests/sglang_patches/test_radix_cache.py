"""The agent-aware radix cache on SGLang's own pools: what is evicted, and that nothing is lost or counted twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.evict_policy import LFUStrategy, LRUStrategy, SLRUStrategy
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey, TreeNode

from hive.server.agents.registry import OTHER, AgentRegistry
from hive.server.agents.window import WindowSettings
from hive.server.eviction.leaves import LeafIndex
from hive.server.eviction.policies.density import DEAD, DensitySettings
from hive.server.integrity import IntegrityError
from sglang_patches.cache.radix_cache import (
    BATCH_SHARE,
    HiveRadixCache,
    build_radix_cache,
    subtree,
)
from tests.sglang_patches.kv_pool import HealthCheck, KvPool, PooledRequest, path_of

HIVE_POLICIES = ("paper", "density")
POLICIES = ("lru", *HIVE_POLICIES)
PAGES = (1, 4, 16)


def text(name: int, length: int) -> list[int]:
    """Tokens that no other name has."""
    return [1000 * (name + 1) + at for at in range(length)]


# Whose KV is whose.


@pytest.mark.parametrize("policy", POLICIES)
def test_kv_belongs_to_the_agent_that_computed_it(policy: str) -> None:
    pool = KvPool(256, policy)
    pool.run(text(0, 30), "writer", output=text(9, 11))
    pool.run(text(0, 30) + text(1, 20), "reader")
    pool.check()
    assert pool.cache.accounting.summary() == {
        "writer": {"resident_tokens": 40, "stored_tokens": 40, "evicted_tokens": 0},
        "reader": {"resident_tokens": 20, "stored_tokens": 20, "evicted_tokens": 0},
    }
    assert pool.agents.window.edges() == [
        {"agent": "reader", "producer": "writer", "tokens": 30, "events": 1},
    ]


def test_requests_that_name_no_agent_are_counted_together() -> None:
    pool = KvPool(256)
    pool.run(text(0, 10))
    pool.run(text(1, 10), None, "run-1")
    assert pool.cache.accounting.resident == {OTHER: 20}


def test_agents_past_the_limit_are_counted_together() -> None:
    pool = KvPool(256, max_agents=2)
    for number in range(4):
        pool.run(text(number, 10), f"agent-{number}")
    assert pool.cache.accounting.resident == {"agent-0": 10, "agent-1": 10, OTHER: 20}


def test_a_health_check_is_anonymous_and_no_admission() -> None:
    pool = KvPool(256)
    pool.run(text(0, 10), "a")
    check = HealthCheck("HEALTH_CHECK_1", [5, 6, 7])
    assert pool.admit(check)
    pool.finish(check)
    pool.check()
    assert pool.cache.accounting.resident == {"a": 10, OTHER: 3}
    assert pool.cache.accounting.clock == 1


def test_looking_for_a_prefix_is_no_use_of_it() -> None:
    pool = KvPool(256)
    pool.run(text(0, 30), "a")
    waiting = pool.request([*text(0, 20), 5], "b")
    for _ in range(5):
        assert len(pool.found(waiting.tokens, waiting)) == 20
    records = [node.hive for node in subtree(pool.cache.root_node)[1:]]
    assert [(record.agent, record.hits, record.ends, record.used) for record in records] == [
        ("a", 0, 0, 1)
    ] * 2
    assert pool.cache.accounting.clock == 1
    pool.check()


def test_a_request_uses_its_prefix_once_however_many_chunks_it_is_computed_in() -> None:
    pool = KvPool(256)
    pool.run(text(0, 20), "a")
    req = pool.request(text(0, 20) + text(1, 60), "b")
    assert pool.admit(req, chunk=10)
    for upto in (40, 60, 80):
        pool.prefill(req, upto)
        pool.check()
    pool.finish(req)
    records = [node.hive for node in subtree(pool.cache.root_node)[1:]]
    assert [(record.producer, record.hits) for record in records] == [("a", 1)] + [("b", 0)] * 4
    assert pool.cache.accounting.clock == 2
    assert pool.agents.window.edges()[0]["tokens"] == 20


def test_a_retracted_request_uses_its_prefix_once() -> None:
    pool = KvPool(256)
    pool.run(text(0, 20), "a")
    req = pool.request(text(0, 20) + text(1, 5), "b")
    for _ in range(3):
        assert pool.admit(req)
        pool.decode(req, 7)
        pool.retract(req)
        pool.check()
    assert pool.cache.accounting.clock == 2
    assert pool.agents.window.edges()[0]["events"] == 1
    assert pool.admit(req)
    pool.finish(req)
    pool.check()
    # What the prefills stored stays when a request is retracted; its last drawn token has no KV before the next one.
    assert pool.cache.accounting.resident == {"a": 20, "b": 8}


def test_a_request_that_ends_with_its_prefill_is_counted_as_it_finishes() -> None:
    pool = KvPool(256)
    req = pool.request(text(0, 10), "a")
    match = pool.match(req.tokens)
    pool.cache.inc_lock_ref(match.last_device_node)
    pool.table.alloc([req])
    req.locked(pool.cache, match.last_device_node)
    pool.running.append(req)
    pool._extend(req, 10)
    pool.finish(req)
    pool.check()
    assert pool.cache.accounting.resident == {"a": 10}
    assert pool.cache.accounting.clock == 1


def test_a_split_copies_the_record_to_both_halves() -> None:
    pool = KvPool(256)
    pool.run(text(0, 30), "a", "run-1")
    pool.run([*text(0, 12), 5], "b", "run-1")
    top, *rest = subtree(pool.cache.root_node)[1:]
    tail = next(node for node in rest if len(node.key) == 18)
    assert (top.hive.producer, top.hive.agent, top.hive.hits, top.hive.used) == ("a", "b", 1, 2)
    assert (tail.hive.producer, tail.hive.agent, tail.hive.hits, tail.hive.used) == ("a", "a", 0, 1)
    assert top.hive.session is tail.hive.session is not None
    pool.check()


# What is evicted.


@pytest.mark.parametrize("page", PAGES)
def test_only_as_much_of_the_last_victim_goes_as_is_needed(page: int) -> None:
    pool = KvPool(1024, "density", page)
    for name in range(4):
        pool.run(text(name, 160), "a")
    wanted = 160 + 3 * page + 1
    assert pool.evict(wanted) == 160 + 4 * page
    pool.check()
    assert [pool.resident(text(name, 160)) for name in range(4)] == [0, 160 - 4 * page, 160, 160]


@pytest.mark.parametrize("page", PAGES)
def test_a_trimmed_leaf_can_be_trimmed_again_and_grown_again(page: int) -> None:
    pool = KvPool(1600, "density", page)
    pool.run(text(0, 320), "a", "run-1")
    for left in (304, 288, 272):
        assert pool.evict(16) == 16
        pool.check()
        assert pool.resident(text(0, 320)) == left
    (leaf,) = pool.leaves()
    assert (leaf.hive.agent, leaf.hive.used, leaf.hive.hits) == ("a", 1, 0)
    pool.run(text(0, 320), "b", "run-1")
    pool.check()
    assert pool.resident(text(0, 320)) == 320
    assert pool.cache.accounting.resident == {"a": 272, "b": 48}


def test_a_batch_is_a_hundredth_of_the_pool_if_there_are_many_leaves() -> None:
    pool = KvPool(1000, "density")
    pool.run(text(0, 100), "a")
    assert pool.evict(1) == 1, "one leaf is weighed at once"
    for name in range(1, 101):
        pool.run(text(name, 8), "a")
    assert BATCH_SHARE == 100
    assert pool.evict(1) == 10
    assert pool.evict(9) == 10
    assert pool.evict(11) == 11
    pool.check()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tokens", [0, -5])
def test_nothing_is_evicted_where_nothing_is_asked_for(policy: str, tokens: int) -> None:
    pool = KvPool(256, policy)
    pool.run(text(0, 50), "a")
    assert pool.evict(tokens) == 0
    assert pool.resident(text(0, 50)) == 50


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("policy", POLICIES)
def test_evicting_too_much_evicts_all_but_locked_kv(policy: str, page: int) -> None:
    pool = KvPool(512, policy, page)
    for name in range(3):
        pool.run(text(0, 32) + text(name, 64), "a")
    req = pool.request([*text(0, 32), *text(1, 64), 5], "b")
    assert pool.admit(req)
    assert pool.evict(10_000) == 2 * 64
    pool.check()
    assert pool.resident(text(0, 32) + text(1, 64)) == 96
    pool.finish(req)
    pool.evict(10_000)
    pool.check()
    assert pool.cache.total_size() == 0
    assert pool.cache.accounting.resident == {}
    assert pool.allocator.available_size() == 512


def scored(policy: str, size: int = 1024, page: int = 1) -> KvPool:
    """A pool that is empty, and whose agents have scores: high 1, middle 1/4, low 0."""
    pool = KvPool(size, policy, page, window=WindowSettings(4, 4, collaborative_weight=0.0))
    for agent, cached in (("high", 10), ("high", 10), ("middle", 10), ("low", 0)):
        pool.agents.arrived(agent, None, 10)
        pool.agents.left(agent, cached_tokens=cached, generated=0, replayed=0)
    pool.agents.arrived("nobody", None, 10)
    assert [pool.agents.window.score(agent) for agent in ("high", "middle", "low")] == [1.0, 0.25, 0.0]
    return pool


def eviction_order(pool: KvPool) -> list[tuple[str, int]]:
    """(first token of a leaf's own, tokens freed) of everything, as it goes when a little is asked for at a time."""
    freed = freed_by(pool.cache)
    while pool.cache.evictable_size():
        pool.evict(1)
        pool.check()
    return [(node.hive.producer, node.key.token_ids[0]) for node in freed]


def freed_by(cache: Any) -> list[TreeNode]:
    """A list that grows with every leaf that a cache frees."""
    freed: list[TreeNode] = []
    original = cache._free

    def free(leaf: TreeNode) -> int:
        freed.append(leaf)
        return int(original(leaf))

    cache._free = free
    return freed


def test_the_papers_policy_evicts_whole_leaves_by_score_of_the_producer_and_then_last_use() -> None:
    pool = scored("paper")
    for name, agent in enumerate(("middle", "high", "low", "middle", "low", "stranger")):
        pool.run(text(name, 40), agent)
    pool.run([*text(2, 40), 5], "high")  # the use of a node does not change whose it is
    order = eviction_order(pool)
    assert order == [
        ("low", 5000),
        ("stranger", 6000),
        # What the agent of high score added goes last; below it lies what the one of low score had computed.
        ("middle", 1000),
        ("middle", 4000),
        ("high", 2000),
        ("high", 5),
        ("low", 3000),
    ]


def test_the_papers_policy_never_splits_a_leaf() -> None:
    pool = scored("paper")
    pool.run(text(0, 100), "low")
    assert pool.evict(1) == 100
    pool.check()


def test_a_parent_that_becomes_a_leaf_takes_its_place_among_the_others() -> None:
    pool = scored("paper")
    pool.run(text(0, 10) + text(1, 10), "low")
    pool.run(text(0, 10) + text(2, 10), "high")
    pool.run(text(3, 10), "middle")
    # Of three nodes of one path two are of the lowest score, but the highest one lies below one of them.
    assert eviction_order(pool) == [("low", 2000), ("middle", 4000), ("high", 3000), ("low", 1000)]


def test_density_keeps_reused_kv() -> None:
    pool = KvPool(2000, "density")
    for turn in range(60):
        pool.run([*text(0, 200), turn], "looping", "loop")
        pool.run(text(turn + 1, 300), "once", "loop")
        pool.check()
    assert pool.cache.accounting.totals["once"].evicted > 10_000
    assert pool.resident(text(0, 200)) == 200
    assert pool.cache.accounting.totals["looping"].evicted < 200
    for turn in range(100, 107):
        pool.run(text(turn, 300), "once", "loop")
    assert pool.resident(text(0, 200)) == 200, "LRU would have let it go"


def test_kv_of_an_ended_session_is_evicted_first() -> None:
    pool = KvPool(1000, "density")
    pool.run(text(0, 100), "a", "over")
    pool.run(text(0, 100) + text(1, 50), "a", "over")
    pool.run(text(2, 100), "a", "goes-on")
    pool.run(text(3, 100), "a", "over")
    pool.run(text(2, 100) + text(4, 10), "a", "over")
    pool.end_session("over")
    pool.check()
    assert sorted(len(leaf.key) for leaf in pool.leaves() if pool.cache.worth_of(leaf) == DEAD) == [
        10,
        50,
        100,
    ]
    assert pool.evict(260) == 260
    pool.check()
    assert pool.resident(text(2, 100)) == 100
    assert pool.cache.total_size() == 100, "two sessions used it, so the end of one says nothing"


def test_a_session_that_ends_early_also_ends_for_the_kv_of_its_running_requests() -> None:
    pool = KvPool(1000, "density")
    pool.run(text(9, 100), "a", "goes-on")
    req = pool.request(text(0, 100), "a", "over")
    assert pool.admit(req)
    pool.end_session("over")
    pool.decode(req, 5)
    pool.decode(req, 6)
    pool.check()
    pool.finish(req)
    pool.check()
    assert pool.evict(101) == 101
    assert pool.resident(text(9, 100)) == 100


def test_a_request_that_waited_while_its_session_ended_begins_another_one() -> None:
    pool = KvPool(1000, "density")
    pool.run(text(0, 50), "a", "run-1")
    late = pool.request(text(0, 50) + text(1, 50), "a", "run-1")
    pool.end_session("run-1")
    assert pool.admit(late)
    pool.finish(late)
    pool.check()
    assert not any(node.hive.dead for node in subtree(pool.cache.root_node)[1:])


def batch(pool: KvPool, *reqs: PooledRequest) -> None:
    """Have requests match their prefixes and get their slots in one step of the scheduler, as one prefill batch."""
    for req in reqs:
        match = pool.match(req.tokens, req)
        pool.cache.inc_lock_ref(match.last_device_node)
        assert pool.table.alloc([req]) is not None
        indices = req.found(pool.cache, match)
        req.locked(pool.cache, match.last_device_node)
        req.prefix_indices = indices
        req.matched = req.cache_protected_len = req.kv_committed_len = len(indices)
        pool.table.write((req.req_pool_idx, slice(0, len(indices))), indices.to(torch.int32))
        pool.running.append(req)
    for req in reqs:
        pool._extend(req, len(req.tokens))


def crowd(pool: KvPool) -> None:
    """Dead KV is evicted before other KV."""
    pool.run(text(50, 208), "once", "over")
    pool.end_session("over")
    pool.evict(208)
    pool.check()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("policy", POLICIES)
def test_kv_that_two_requests_of_a_batch_computed_belongs_to_both_sessions(policy: str, page: int) -> None:
    pool = KvPool(1600, policy, page)
    reqs = [pool.request(text(0, 192) + text(run, 32), "a", f"run-{run}") for run in (1, 2)]
    batch(pool, *reqs)
    for req in reqs:
        pool.prefill(req, len(req.tokens))
        pool.check()
    pool.finish(reqs[0])
    pool.end_session("run-1")
    pool.check()
    pool.finish(reqs[1])
    pool.check()
    nodes = {len(path_of(node)): node.hive for node in subtree(pool.cache.root_node)[1:] if node.children}
    assert (nodes[192].dead, nodes[192].session, nodes[192].shared) == (False, None, True)
    assert (nodes[192].hits, nodes[192].ends, nodes[192].agent) == (0, 0, "a"), "neither found it there"
    assert sorted(leaf.hive.dead for leaf in pool.leaves()) == [False, True]
    assert pool.cache.accounting.clock == 2


@pytest.mark.parametrize("page", PAGES)
def test_equal_prompts_that_end_with_their_prefill_are_of_both_sessions(page: int) -> None:
    pool = KvPool(1600, "density", page)
    reqs = [pool.request(text(0, 208), "a", f"run-{run}") for run in (1, 2)]
    batch(pool, *reqs)
    pool.finish(reqs[0])
    pool.end_session("run-1")
    (leaf,) = pool.leaves()
    assert pool.cache.worth_of(leaf) == DEAD
    pool.finish(reqs[1])
    pool.check()
    assert pool.leaves() == [leaf]
    crowd(pool)
    assert pool.resident(text(0, 208)) == 208


def test_equal_answers_are_of_both_sessions() -> None:
    pool = KvPool(1000, "density")
    reqs = []
    for run in (1, 2):
        reqs.append(pool.request(text(0, 100), "a", f"run-{run}"))
        assert pool.admit(reqs[-1])
    for token in text(1, 101):
        for req in reqs:
            pool.decode(req, token)
    pool.finish(reqs[0])
    pool.end_session("run-1")
    pool.finish(reqs[1])
    pool.check()
    crowd(pool)
    assert pool.resident(text(0, 100) + text(1, 100)) == 200


@pytest.mark.parametrize("other", ["run-1", "health check"])
def test_kv_stays_of_the_one_session_that_computes_it_twice(other: str) -> None:
    pool = KvPool(1000, "density")
    first = pool.request(text(0, 100), "a", "run-1")
    second = HealthCheck("0", text(0, 100)) if other != "run-1" else pool.request(text(0, 100), "b", "run-1")
    batch(pool, first, second)
    pool.finish(first)
    pool.finish(second)
    pool.check()
    (leaf,) = pool.leaves()
    assert not leaf.hive.shared
    pool.end_session("run-1")
    pool.check()
    assert leaf.hive.dead


def test_an_unknown_session_ends_without_harm() -> None:
    pool = KvPool(256, "density")
    pool.run(text(0, 50), "a", "run-1")
    pool.end_session("run-2")
    pool.check()
    assert not any(leaf.hive.dead for leaf in pool.leaves())


@pytest.mark.parametrize("policy", ["lru", "paper"])
def test_sessions_end_under_every_policy(policy: str) -> None:
    pool = KvPool(256, policy)
    pool.run(text(0, 50), "a", "run-1")
    pool.end_session("run-1")
    pool.check()
    assert all(leaf.hive.dead for leaf in pool.leaves())


# Around it.


@pytest.mark.parametrize("policy", HIVE_POLICIES)
def test_the_index_orders_by_the_score_of_a_node(policy: str) -> None:
    pool = scored(policy)
    for name, agent in enumerate(("middle", "high", "low", "middle")):
        pool.run(text(name, 40), agent, f"run-{name}")
    pool.end_session("run-1")
    index = pool.cache.evictable_leaves
    victims = list(index.victims(pool.cache.accounting.clock, pool.cache.accounting.now))
    priorities = [pool.cache.eviction_strategy.get_priority(leaf) for leaf in victims]
    assert priorities == sorted(priorities)
    assert priorities[0] < priorities[-1]
    assert len(victims) == 4


def test_a_flush_leaves_nothing_but_the_totals() -> None:
    for policy in POLICIES:
        pool = KvPool(256, policy)
        pool.run(text(0, 100), "a", "run-1")
        pool.evict(30)
        evicted = pool.cache.accounting.totals["a"].evicted
        pool.flush()
        pool.check()
        assert pool.leaves() == []
        assert pool.cache.summary()["resident_tokens"] == 0
        assert pool.cache.summary()["evicted_tokens"] == evicted >= 30
        pool.run(text(0, 100), "a", "run-1")
        pool.check()
        assert pool.cache.accounting.resident == {"a": 100}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_summary_counts_evictions(policy: str) -> None:
    pool = KvPool(256, policy)
    for name in range(3):
        pool.run(text(name, 40), "a")
    pool.evict(40)
    summary = pool.cache.summary()
    assert summary.pop("eviction_seconds") > 0.0
    assert summary == {
        "policy": policy,
        "capacity_tokens": 256,
        "admissions": 3,
        "evictions": 1,
        "resident_tokens": 80,
        "evicted_tokens": 40,
    }


@pytest.mark.parametrize(
    ("policy", "strategy"), [("lru", LRUStrategy), ("lfu", LFUStrategy), ("slru", SLRUStrategy)]
)
def test_the_engines_policies_decide_as_the_engines_cache_does(policy: str, strategy: type) -> None:
    class Engines(KvPool):
        def _cache(self, policy: str, density: DensitySettings | None) -> Any:
            self.params.eviction_policy = policy
            return RadixCache(self.params)

        def check(self) -> None:
            """SGLang's own cache has no accounting."""

    ours, theirs = KvPool(600, policy), Engines(600, policy)
    assert isinstance(ours.cache.eviction_strategy, strategy)
    assert ours.cache.policy is None
    assert type(ours.cache.evictable_leaves) is set
    for pool in (ours, theirs):
        chance = random.Random(1)
        for _ in range(150):
            pool.run(
                text(chance.randrange(3), 20) + text(10 + chance.randrange(8), chance.randrange(20, 80)),
                "a",
                output=[7, chance.randrange(5), 8],
            )
            pool.check()
    paths = [sorted(path_of(leaf) for leaf in pool.leaves()) for pool in (ours, theirs)]
    assert paths[0] == paths[1]
    assert ours.cache.accounting.totals["a"].evicted > 3000


def test_the_engines_choice_is_left_as_it_is() -> None:
    pool = KvPool(64)
    params = pool.params
    params.eviction_policy = "slru"
    cache = build_radix_cache(params, "engine", AgentRegistry(4))
    assert cache.policy is None
    assert isinstance(cache.eviction_strategy, SLRUStrategy)
    assert cache.summary()["policy"] == "slru"


def test_a_disabled_cache_evicts_nothing() -> None:
    pool = KvPool(64)
    params = pool.params
    params.disable = True
    cache = build_radix_cache(params, "density", AgentRegistry(4))
    assert cache.evict(SimpleNamespace(num_tokens=5)).num_tokens_evicted == 0
    cache.check_integrity()


@pytest.mark.parametrize("page", PAGES)
def test_keys_of_token_pairs_are_evicted_by_whole_pages(page: int) -> None:
    # As with EAGLE: n + 1 tokens are n pairs, and a key of n pairs has n slots.
    pool = KvPool(320, "density", page, is_eagle=True)
    slots = pool.allocator.alloc(160)
    key = RadixKey(PooledRequest("", text(0, 161), None, None).origin_input_ids)
    pool.cache.insert(InsertParams(key=key, value=slots))
    pool.cache.check_integrity()
    assert pool.evict(17) == 17 + -17 % page
    pool.cache.check_integrity()
    assert pool.cache.total_size() == 160 - (17 + -17 % page)
    assert pool.allocator.available_size() == 320 - pool.cache.total_size()


# The check itself.


def evictable(pool: KvPool, by: int) -> None:
    pool.cache.evictable_size_ += by


def moved(pool: KvPool) -> None:
    pool.cache.evictable_size_ -= 5
    pool.cache.protected_size_ += 5


def forgotten(pool: KvPool) -> None:
    pool.cache.evictable_leaves.discard(pool.leaves()[0])


def counted_twice(pool: KvPool) -> None:
    pool.cache.accounting.resident["a"] += 1


def held_twice(pool: KvPool) -> None:
    pool.cache.accounting.held["a"] += 1


def changed(pool: KvPool) -> None:
    pool.leaves()[0].hive.hits += 1


def away(pool: KvPool) -> None:
    pool.leaves()[0].hive.on_device = False


def unrecorded(pool: KvPool) -> None:
    del pool.leaves()[0].hive


def cut(pool: KvPool) -> None:
    leaf = pool.leaves()[0]
    leaf.value = leaf.value[:-4]


def odd(pool: KvPool) -> None:
    leaf = pool.leaves()[0]
    leaf.key = leaf.key[:-1]


def lost(pool: KvPool) -> None:
    leaf = pool.leaves()[0]
    leaf.parent.children[99] = leaf.parent.children.pop(leaf.key.child_key(4))


def miscounted(pool: KvPool) -> None:
    pool.now = 1.0
    pool.run(text(9, 20), "a", "s")
    (dialogue,) = pool.cache.accounting.dialogues
    dialogue.path[1] += 4


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda pool: evictable(pool, 4), "evictable tokens: 44 in the accounting, 40 in the tree"),
        (moved, "evictable tokens: 35 in the accounting, 40 in the tree"),
        (lambda pool: setattr(pool.cache, "protected_size_", 1), "protected tokens: 1 in the accounting, 0"),
        (forgotten, r"evictable leaves: \[\d+\] in the accounting, \[\d+, \d+\] in the tree"),
        (counted_twice, "resident tokens by agent: {'a': 41} in the accounting, {'a': 40}"),
        (held_twice, "resident tokens by last user: {'a': 41} in the accounting, {'a': 40}"),
        (changed, r"leaves that have changed since they were indexed: \[\d+\]"),
        (
            miscounted,
            r"tokens on the paths of dialogues: {1: \[20, 4, 0, 0\]} in the accounting, {1: \[20, 0, ",
        ),
        (away, r"node \d+ is not in the tier that its record names"),
        (unrecorded, r"node \d+ is on the device without a record"),
        (cut, r"node \d+ has fewer slots than tokens"),
        (odd, r"node \d+ has 15 tokens, which is not a multiple of the page size"),
        (lost, r"node \d+ is not its parent's child"),
    ],
)
def test_integrity_errors_are_named(damage: Callable[[KvPool], None], words: str) -> None:
    pool = KvPool(256, "density", page=4)
    pool.run(text(0, 8) + text(1, 16), "a")
    pool.run(text(0, 8) + text(2, 16), "a")
    pool.cache.check_integrity()
    damage(pool)
    with pytest.raises(IntegrityError, match=words):
        pool.cache.check_integrity()


# Random traffic.

AGENTS = (None, "a", "b", "c")
SESSIONS = (None, "s", "t")
SEEDS = st.integers(0, 2**16)


def random_prompt(chance: random.Random) -> list[int]:
    """Few words of different lengths, so that prompts share beginnings that end anywhere."""
    words = [text(word, length) for word, length in enumerate((3, 16, 21, 40))]
    prompt = [token for _ in range(chance.randrange(1, 5)) for token in chance.choice(words)]
    return [*prompt, *range(chance.randrange(1, 4))]


def strangers(pool: KvPool) -> list[tuple[str, int]]:
    """(request, node) of what a request goes on from though it is said to be of another session alone."""
    found = []
    for req in pool.running:
        node = req.last_node
        while node is not pool.cache.root_node:
            assert req.hive.use is not None
            if node.hive.session not in (None, req.hive.use.session):
                found.append((req.rid, node.id))
            node = node.parent
    return found


class CacheMachine(RuleBasedStateMachine):
    """Everything that the scheduler does to a cache, in any order."""

    @initialize(policy=st.sampled_from(POLICIES), page=st.sampled_from(PAGES))
    def begin(self, policy: str, page: int) -> None:
        self.pool = KvPool(
            320,
            policy,
            page,
            window=WindowSettings(4, 3),
            density=DensitySettings(evidence=50.0, half_life=20),
            max_agents=3,
        )
        self.waiting: list[PooledRequest] = []

    @rule(seed=SEEDS, in_chunks=st.booleans())
    def admit(self, seed: int, in_chunks: bool) -> None:
        chance = random.Random(seed)
        if len(self.pool.running) < 4:
            req = self.pool.request(random_prompt(chance), chance.choice(AGENTS), chance.choice(SESSIONS))
            if not self.pool.admit(req, chance.randrange(1, 40) if in_chunks else None):
                self.waiting.append(req)

    @rule(seed=SEEDS)
    def admit_one_that_waits(self, seed: int) -> None:
        if self.waiting and len(self.pool.running) < 4:
            req = self.waiting.pop(seed % len(self.waiting))
            if not self.pool.admit(req):
                self.waiting.append(req)

    @rule(seed=SEEDS, in_full=st.booleans())
    def admit_a_batch(self, seed: int, in_full: bool) -> None:
        chance = random.Random(seed)
        prompts = [random_prompt(chance) for _ in range(2)]
        if chance.random() < 0.5:
            prompts[1] = [*prompts[0], 5]
        if len(self.pool.running) < 3 and self.pool.has_room(sum(map(len, prompts)) + 2 * self.pool.page):
            reqs = [
                self.pool.request(prompt, chance.choice(AGENTS), chance.choice(SESSIONS))
                for prompt in prompts
            ]
            batch(self.pool, *reqs)
            for req in reqs:
                if in_full:
                    self.pool.finish(req)
                else:
                    self.pool.prefill(req, len(req.tokens))

    @rule(seed=SEEDS)
    def look_for_a_prefix(self, seed: int) -> None:
        self.pool.match(random_prompt(random.Random(seed)))

    @rule(seed=SEEDS)
    def check_health(self, seed: int) -> None:
        check = HealthCheck("HEALTH_CHECK", random_prompt(random.Random(seed)))
        if self.pool.admit(check):
            self.pool.finish(check)

    def one_that_runs(self, seed: int, prefilled: bool) -> PooledRequest | None:
        fit = [
            req for req in self.pool.running if (req.prefilled_to >= len(req.origin_input_ids)) is prefilled
        ]
        return fit[seed % len(fit)] if fit else None

    @rule(seed=SEEDS, tokens=st.integers(1, 60))
    def prefill_a_chunk(self, seed: int, tokens: int) -> None:
        req = self.one_that_runs(seed, prefilled=False)
        if req is not None and self.pool.has_room(tokens):
            self.pool.prefill(req, min(len(req.tokens), req.prefilled_to + tokens))

    @rule(seed=SEEDS, tokens=st.integers(1, 20))
    def decode(self, seed: int, tokens: int) -> None:
        req = self.one_that_runs(seed, prefilled=True)
        for token in range(tokens):
            if req is not None and self.pool.has_room(1):
                self.pool.decode(req, token % 7)

    @rule(seed=SEEDS)
    def finish(self, seed: int) -> None:
        req = self.one_that_runs(seed, prefilled=True)
        if req is not None:
            self.pool.finish(req)

    @rule(seed=SEEDS, prefilled=st.booleans())
    def abort(self, seed: int, prefilled: bool) -> None:
        req = self.one_that_runs(seed, prefilled)
        if req is not None:
            self.pool.finish(req, insert=False)

    @rule(seed=SEEDS)
    def retract(self, seed: int) -> None:
        req = self.one_that_runs(seed, prefilled=True)
        if req is not None:
            self.pool.retract(req)
            self.waiting.append(req)

    @rule(tokens=st.integers(0, 400))
    def evict(self, tokens: int) -> None:
        before = self.pool.cache.total_size(), self.pool.cache.evictable_size()
        evicted = self.pool.evict(tokens)
        assert self.pool.cache.total_size() == before[0] - evicted
        assert evicted >= min(tokens, before[1])
        if self.pool.cache.policy is not None and self.pool.cache.policy.trims:
            page = self.pool.page
            assert evicted <= -(-max(tokens, self.pool.size // BATCH_SHARE) // page) * page

    @rule(seed=SEEDS)
    def time_passes(self, seed: int) -> None:
        self.pool.time_passes(random.Random(seed))

    @rule(session=st.sampled_from(["s", "t", "unknown"]))
    def end_session(self, session: str) -> None:
        self.pool.end_session(session)

    @rule()
    def flush(self) -> None:
        if not self.pool.running:
            self.pool.flush()

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()
            assert strangers(self.pool) == []

    def teardown(self) -> None:
        """When all requests have ended nothing is held by anyone but the tree, and all of that can go."""
        if not hasattr(self, "pool"):
            return
        for req in list(self.pool.running):
            self.pool.finish(req, insert=req.prefilled_to >= len(req.origin_input_ids))
        self.pool.check()
        self.pool.evict(10_000)
        self.pool.check()
        assert self.pool.allocator.available_size() == self.pool.size


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


# Tensor-parallel ranks.


class Ranks:
    """Two caches with the same traffic, at other addresses and with another clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: str, page: int) -> None:
        self.now = [1e6, 5.0]
        self.rank = 0
        monkeypatch.setattr(time, "monotonic", self._monotonic)
        self.pools: list[KvPool] = []
        self.freed: list[list[tuple[list[int], int]]] = [[], []]
        """(tokens up to the end of a leaf, how many of them were freed), in order."""
        self.ballast: list[object] = []
        for rank in range(2):
            self.rank = rank
            pool = KvPool(400, policy, page, window=WindowSettings(3, 4))
            self.pools.append(pool)
            self._write_down(pool, self.freed[rank])
            self.ballast += [TreeNode() for _ in range(100)]

    def _monotonic(self) -> float:
        # One rank's clock runs, and the other's goes back.
        self.now[self.rank] += (0.001, -0.5)[self.rank]
        return self.now[self.rank]

    @staticmethod
    def _write_down(pool: KvPool, log: list[tuple[list[int], int]]) -> None:
        original = pool.cache._free

        def free(leaf: TreeNode) -> int:
            path = path_of(leaf)
            log.append((path, int(original(leaf))))
            return log[-1][1]

        pool.cache._free = free

    def both(self, do: Callable[[KvPool], Any]) -> None:
        """Do the same on each; equal answers."""
        answers = []
        for rank, pool in enumerate(self.pools):
            self.rank = rank
            answers.append(do(pool))
        assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("policy", HIVE_POLICIES)
def test_two_ranks_evict_the_same_tokens_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch, policy: str, page: int, seed: int
) -> None:
    ranks = Ranks(monkeypatch, policy, page)
    chance = random.Random(seed)
    for step in range(400):
        kind = chance.choices(("start", "finish", "retract", "evict", "end"), (10, 8, 2, 2, 1))[0]
        draw = chance.randrange(2**16)

        def do(pool: KvPool, kind: str = kind, draw: int = draw) -> Any:
            return step_of(pool, kind, random.Random(draw))

        ranks.both(do)
        if step % 40 == 0:
            ranks.both(KvPool.check)
    assert ranks.freed[0] == ranks.freed[1]
    assert len(ranks.freed[0]) > 100
    assert len({tuple(path) for path, _ in ranks.freed[0]}) > 30
    assert ranks.pools[0].agents.summary() == ranks.pools[1].agents.summary()
    assert ranks.pools[0].cache.accounting.summary() == ranks.pools[1].cache.accounting.summary()


def step_of(pool: KvPool, kind: str, chance: random.Random) -> Any:
    """One step of random traffic; what a rank can see of its outcome."""
    match kind:
        case "start" if len(pool.running) < 4:
            req = pool.request(random_prompt(chance), chance.choice(AGENTS), chance.choice(SESSIONS))
            return pool.admit(req), req.matched
        case "finish" | "retract" if pool.running:
            req = chance.choice(pool.running)
            if pool.has_room(1):
                pool.decode(req, chance.randrange(5))
            pool.finish(req, insert=kind == "finish")
        case "evict":
            return pool.evict(chance.randrange(100))
        case "end":
            pool.end_session(chance.choice(["s", "t"]))
    return len(pool.running)


def test_the_clock_of_the_test_of_ranks_does_matter_to_the_engines_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch, "lru", 1)
    for name in range(4):
        ranks.both(lambda pool, name=name: pool.run(text(name, 50), "a").matched)  # type: ignore[misc]
    ranks.both(lambda pool: pool.evict(50))
    assert ranks.pools[0].resident(text(0, 50)) == 0
    assert ranks.pools[1].resident(text(0, 50)) == 50


# A long run.


@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_run_of_agents_that_come_and_go_adds_up(policy: str) -> None:
    pool = KvPool(3000, policy, max_agents=20, window=WindowSettings(8, 4))
    chance = random.Random(4)
    for run in range(150):
        session = f"run-{run}"
        agents = [f"agent-{chance.randrange(40)}" for _ in range(3)]
        dialogue = text(chance.randrange(5), 100)
        for turn in range(4):
            dialogue = dialogue + text(1000 + 10 * run + turn, chance.randrange(5, 120))
            pool.run(dialogue, chance.choice(agents), session, output=[1, 2, 3])
        pool.end_session(session)
        pool.check()
    summary = pool.cache.summary()
    assert summary["admissions"] == 600
    assert summary["evicted_tokens"] > 10_000
    totals = pool.cache.accounting.totals
    assert len(totals) <= 21
    assert sum(total.stored - total.evicted for total in totals.values()) == pool.cache.total_size()
    assert pool.allocator.available_size() + pool.cache.total_size() == 3000


def test_nodes_of_one_text_are_found_by_the_index_through_thousands_of_leaves() -> None:
    pool = KvPool(20_000, "density")
    for name in range(3000):
        pool.run([7, 7, *text(name, 4)], f"agent-{name % 7}")
    pool.check()
    assert len(pool.leaves()) == 3000
    assert isinstance(pool.cache.evictable_leaves, LeafIndex)
    assert pool.evict(4000) == 4000
    pool.check()
    assert len(pool.leaves()) == 2000
    assert isinstance(pool.cache, HiveRadixCache)
