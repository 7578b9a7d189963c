"""The agent-aware cache with a second tier in host memory, on a CPU.

Everything is SGLang's own: ``HiRadixCache``, ``HiCacheController`` with its queues and acknowledgements, the device
pool, and the host pool with its allocator, which finds out double frees.  What needs a GPU is replaced
(:class:`HostPool`): the pinning of host memory, and the two kernels that copy between the tiers
(``backup_from_device_all_layer``, ``load_to_device_per_layer``), which index plain tensors here.  Besides, the
10 GiB of host memory that SGLang leaves free are not asked for.  Copies are done as soon as they begin; what waits
for the scheduler's next loop is their acknowledgement.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")
pytest.importorskip(
    "sglang.srt.mem_cache.hiradix_cache", reason="of SGLang 0.5.17; later ones have the unified tree"
)

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sglang.srt.mem_cache import hiradix_cache as upstream
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host import base as host_pools
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import TreeNode

from hive.server.agents.registry import OTHER
from hive.server.agents.window import WindowSettings
from hive.server.eviction.base import EvictionPolicy, Weigh
from hive.server.eviction.leaves import LeafIndex
from hive.server.eviction.policies.density import DensitySettings
from hive.server.integrity import IntegrityError
from sglang_patches.cache.hiradix_cache import HiveHiRadixCache
from sglang_patches.cache.radix_cache import subtree
from tests.sglang_patches.kv_pool import KvPool, PooledRequest, hashes, path_of
from tests.sglang_patches.test_radix_cache import strangers

LAYERS = 2
WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")


class HostPool(MHATokenToKVPoolHost):  # type: ignore[misc]
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, pin_memory=False)

    def backup_from_device_all_layer(
        self, device_pool: Any, host_indices: torch.Tensor, device_indices: torch.Tensor, io_backend: str
    ) -> None:
        for layer in range(self.layer_num):
            self.k_buffer[layer][host_indices] = device_pool.k_buffer[layer][device_indices]
            self.v_buffer[layer][host_indices] = device_pool.v_buffer[layer][device_indices]

    def load_to_device_per_layer(
        self,
        device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        layer_id: int,
        io_backend: str,
    ) -> None:
        device_pool.k_buffer[layer_id][device_indices] = self.k_buffer[layer_id][host_indices]
        device_pool.v_buffer[layer_id][device_indices] = self.v_buffer[layer_id][host_indices]


@pytest.fixture(autouse=True, scope="module")
def one_rank_without_a_gpu() -> Iterator[None]:
    """A process group of one, and the replacements that the module tells of."""
    mine = not torch.distributed.is_initialized()
    if mine:
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upstream, "get_mha_host_pool_cls", lambda _: HostPool)
        patch.setattr(upstream.atexit, "register", lambda _: None)
        patch.setattr(host_pools, "HICACHE_HOST_MEMORY_RESERVE_BYTES", 0)
        yield
    if mine:
        torch.distributed.destroy_process_group()


class TieredPool(KvPool):
    """A pool with host memory behind it; what is in the slots is copied with them."""

    def __init__(
        self, size: int, policy: str = "density", page: int = 1, *, host: float, write: str, **options: Any
    ) -> None:
        self._host, self._write_policy = host, write
        super().__init__(size, policy, page, **options)
        self.loaded = 0
        """Tokens that came back from the host."""

    def _allocator(self) -> Any:
        self.device_pool = MHATokenToKVPool(
            self.size, self.page, torch.int64, 1, 1, LAYERS, "cpu", enable_memory_saver=False
        )
        if self.page == 1:
            return TokenToKVPoolAllocator(self.size, torch.int64, "cpu", self.device_pool, False)
        return PagedTokenToKVPoolAllocator(self.size, self.page, torch.int64, "cpu", self.device_pool, False)

    def _cache(self, policy: str, density: DensitySettings | None) -> Any:
        server_args = SimpleNamespace(
            hicache_ratio=self._host / self.size,
            hicache_size=0,
            hicache_mem_layout="layer_first",
            hicache_write_policy=self._write_policy,
            hicache_io_backend="direct",
            hicache_storage_backend=None,
            hicache_storage_backend_extra_config=None,
            hicache_storage_prefetch_policy="best_effort",
            served_model_name="none",
            extra_metric_labels=None,
        )
        decides = self._policy(policy, density)
        return HiveHiRadixCache(self.params, server_args, agents=self.agents, policy=decides)

    @property
    def host_pool(self) -> Any:
        return self.cache.token_to_kv_pool_host

    def write(self, slots: torch.Tensor, kv: list[int]) -> None:
        for layer in range(LAYERS):
            self.device_pool.k_buffer[layer][slots, 0, 0] = torch.tensor(kv, dtype=torch.int64)
            self.device_pool.v_buffer[layer][slots, 0, 0] = torch.tensor(kv, dtype=torch.int64) + layer

    def read(self, slots: torch.Tensor) -> list[int]:
        kv: list[int] = self.device_pool.k_buffer[0][slots, 0, 0].tolist()
        for layer in range(LAYERS):
            assert self.device_pool.k_buffer[layer][slots, 0, 0].tolist() == kv
            assert (self.device_pool.v_buffer[layer][slots, 0, 0] - layer).tolist() == kv
        return kv

    def _load_back(self, match: Any) -> Any:
        loaded, node = super()._load_back(match)
        self.cache.ready_to_load_host_cache()
        self.loaded += len(loaded)
        return loaded, node

    def loop(self) -> None:
        """What the scheduler does with copies that are done, at each of its loops."""
        self.cache.check_hicache_events()

    def run(self, *args: Any, **kwargs: Any) -> PooledRequest:
        req = super().run(*args, **kwargs)
        self.loop()
        return req

    def on_host(self, tokens: list[int]) -> int:
        """How many tokens behind the resident ones are on the host alone."""
        return int(self.match([*tokens, -1]).host_hit_length)

    def check(self) -> None:
        super().check()
        nodes = subtree(self.cache.root_node)[1:]
        backed = [node for node in nodes if node.backuped]
        owned = [slot for node in backed for slot in node.host_value.tolist()]
        free = [*self.host_pool.free_slots.tolist()]
        free += [slot for part in self.host_pool.release_slots for slot in part.tolist()]
        assert sorted(owned + free) == list(range(self.host_pool.size)), (
            "slots of the host are lost or shared"
        )
        for node in backed:
            kv = self.host_pool.k_buffer[LAYERS - 1][node.host_value, 0, 0].tolist()
            assert kv == hashes(path_of(node))[-len(kv) :], "the host has other KV"


def text(name: int, length: int) -> list[int]:
    """Tokens that no other name has."""
    return [1000 * (name + 1) + at for at in range(length)]


def resident(pool: KvPool) -> dict[str, int]:
    return dict(pool.cache.accounting.resident)


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("policy", ["paper", "density"])
def test_kv_evicted_from_the_device_is_loaded_back_from_the_host(policy: str, page: int) -> None:
    pool = TieredPool(256, policy, page, host=512, write="write_through")
    pool.run(text(0, 80), "writer", "run-1")
    pool.run(text(1, 80), "other")
    assert pool.evict(80) == 80
    pool.check()
    assert (pool.resident(text(0, 80)), pool.on_host(text(0, 80))) == (0, 80)
    assert resident(pool) == {"other": 80}
    req = pool.run([*text(0, 80), 5, 6, 7, 8], "reader", "run-2")
    pool.check()
    assert (req.matched, pool.loaded) == (80, 80)
    assert resident(pool) == {"writer": 80, "reader": 4, "other": 80}
    assert pool.cache.accounting.totals["writer"].stored == 160, "it was stored twice"
    assert pool.agents.window.edges()[0] == {
        "agent": "reader",
        "producer": "writer",
        "tokens": 80,
        "events": 1,
    }
    (node,) = [node for node in subtree(pool.cache.root_node)[1:] if node.hive.producer == "writer"]
    assert (node.hive.agent, node.hive.hits, node.hive.on_device, node.hive.shared) == (
        "reader",
        1,
        True,
        True,
    )


@pytest.mark.parametrize("page", [1, 4])
def test_a_trim_leaves_the_tail_on_the_host_alone(page: int) -> None:
    pool = TieredPool(256, "density", page, host=512, write="write_through")
    pool.run(text(0, 80), "a")
    assert pool.evict(9) == 9 + -9 % page
    pool.check()
    left = 80 - 9 - -9 % page
    assert (pool.resident(text(0, 80)), pool.on_host(text(0, 80))) == (left, 80 - left)
    assert resident(pool) == {"a": left}
    # Less than ten tokens are not worth a copy for SGLang: they are computed again, and whose they are stays known.
    pool.run(text(0, 80), "b")
    pool.check()
    assert pool.cache.accounting.resident.total() == 80
    assert pool.resident(text(0, 80)) == 80


def test_kv_that_is_computed_again_stays_its_first_producers() -> None:
    pool = TieredPool(256, "density", host=512, write="write_through")
    pool.run(text(0, 40), "first")
    pool.evict(5)
    req = pool.run(text(0, 40), "second")
    pool.check()
    assert pool.loaded == 0
    assert req.matched == 35
    assert resident(pool) == {"first": 40}


@pytest.mark.parametrize("page", [1, 4])
def test_kv_that_is_computed_again_is_of_who_computes_it(page: int) -> None:
    pool = TieredPool(256, "density", page, host=512, write="write_through")
    pool.run(text(0, 40), "first", "run-1")
    pool.evict(8)  # less than SGLang loads back
    pool.end_session("run-1")
    req = pool.run(text(0, 40) + text(1, 20), "second", "run-2")
    pool.check()
    assert (req.matched, pool.loaded) == (32, 0)
    nodes = {len(path_of(node)): node.hive for node in subtree(pool.cache.root_node)[1:]}
    assert not any(node.dead for node in nodes.values())
    assert [(length, nodes[length].agent, nodes[length].used, nodes[length].hits) for length in (32, 40)] == [
        (32, "second", 2, 1),
        (40, "second", 2, 0),
    ]
    assert (nodes[40].producer, nodes[40].session, nodes[40].shared) == ("first", None, True)
    assert pool.cache.accounting.held == {"second": 60}


def test_kv_that_is_loaded_back_for_an_anonymous_request_stays_dead() -> None:
    pool = TieredPool(256, "density", host=512, write="write_through")
    pool.run(text(0, 40), "first", "run-1")
    pool.evict(40)
    pool.end_session("run-1")
    pool.run(text(1, 20), "second", "run-2")
    waiting = pool.request([*text(0, 40), 5], "second", "run-2")
    pool._load_back(pool.match(waiting.tokens, waiting))
    pool.check()
    assert pool.loaded == 40
    assert resident(pool) == {"first": 40, "second": 20}
    (node,) = [node for node in subtree(pool.cache.root_node)[1:] if node.hive.producer == "first"]
    assert (node.hive.agent, node.hive.used, node.hive.dead) == ("first", 1, True)


def test_a_node_that_is_on_the_host_alone_splits_where_a_text_leaves_it() -> None:
    pool = TieredPool(256, "density", host=512, write="write_through")
    pool.run(text(0, 60), "a", "run-1")
    pool.evict(60)
    pool.run([*text(0, 25), 5], "b", "run-1")
    pool.check()
    assert pool.loaded == 25
    assert resident(pool) == {"a": 25, "b": 1}
    pool.end_session("run-1")
    pool.check()
    halves = [node.hive for node in subtree(pool.cache.root_node)[1:] if node.hive.producer == "a"]
    assert [(half.on_device, half.dead, half.hits) for half in halves] == [(True, True, 1), (False, True, 0)]


def test_kv_that_is_not_on_the_host_is_lost_when_evicted() -> None:
    pool = TieredPool(256, "density", host=512, write="write_through_selective")
    req = pool.request(text(0, 40), "a")
    assert pool.admit(req)
    pool.finish(
        req, insert=False
    )  # SGLang takes the second insertion for a second use, and writes to the host
    pool.evict(40)
    pool.check()
    assert (pool.resident(text(0, 40)), pool.on_host(text(0, 40))) == (0, 0)
    assert pool.cache.accounting.summary()["a"] == {
        "resident_tokens": 0,
        "stored_tokens": 40,
        "evicted_tokens": 40,
    }


def test_a_node_is_locked_while_it_is_written_to_the_host() -> None:
    pool = TieredPool(256, "density", host=512, write="write_through")
    req = pool.request(text(0, 40), "a")
    assert pool.admit(req)
    pool.finish(req)
    pool.check()
    assert pool.leaves() == []
    assert pool.evict(40) == 0
    pool.loop()
    pool.check()
    assert len(pool.leaves()) == 1
    assert pool.evict(40) == 40
    pool.check()


def test_dead_kv_leaves_the_host_before_older_kv() -> None:
    pool = TieredPool(512, "density", host=199, write="write_through")
    pool.run(text(0, 100), "a", "goes-on")
    pool.run(text(1, 100), "a", "over")
    pool.evict(200)
    pool.end_session("over")
    pool.run(text(2, 50), "b")
    pool.check()
    assert (pool.on_host(text(0, 100)), pool.on_host(text(1, 100))) == (100, 0)


def test_the_papers_policy_keeps_the_host_for_those_who_contribute() -> None:
    pool = TieredPool(
        512, "paper", host=199, write="write_through", window=WindowSettings(2, 4, collaborative_weight=0.0)
    )
    for agent, cached in (("high", 10), ("low", 0)):
        pool.agents.arrived(agent, None, 10)
        pool.agents.left(agent, cached_tokens=cached, generated=0, replayed=0)
    pool.run(text(0, 100), "high")
    pool.run(text(1, 100), "low")
    assert pool.agents.window.score("high") > pool.agents.window.score("low")
    pool.evict(200)
    pool.run(text(2, 50), "low")
    pool.check()
    assert (pool.on_host(text(0, 100)), pool.on_host(text(1, 100))) == (100, 0)


@pytest.mark.parametrize("policy", ["lru", "paper", "density"])
def test_write_back_stages_evicted_kv(policy: str) -> None:
    pool = TieredPool(256, policy, host=512, write="write_back")
    for name in range(3):
        pool.run(text(name, 60), "a")
    assert pool.host_pool.available_size() == pool.host_pool.size, "nothing is written before it is evicted"
    assert pool.evict(100) == 120
    pool.check()
    assert [pool.on_host(text(name, 60)) for name in range(3)] == [60, 60, 0]
    assert resident(pool) == {"a": 60}
    assert pool.cache.summary()["evictions"] == 1
    assert pool.run(text(1, 60), "b").matched == 59
    pool.check()


@pytest.mark.parametrize("policy", ["paper", "density"])
@pytest.mark.parametrize("write", ["write_through", "write_back"])
def test_a_ranking_is_prepared_once_for_each_eviction_of_sglangs(
    monkeypatch: pytest.MonkeyPatch, policy: str, write: str
) -> None:
    pool = TieredPool(256, policy, host=512, write=write)
    for name in range(4):
        # Chains, so that parents become leaves.
        pool.run(text(name, 20), "a")
        pool.run(text(name, 20) + text(10 + name, 20), "b")
    collected = 0
    weighing = type(pool.cache.policy).weighing

    def counted(policy: EvictionPolicy, clock: int, now: float) -> Weigh:
        nonlocal collected
        collected += 1
        return weighing(policy, clock, now)

    monkeypatch.setattr(type(pool.cache.policy), "weighing", counted)
    assert pool.evict(160) == 160
    assert collected == 1
    pool.cache.evict_host(160)
    assert collected == 2
    assert pool.host_pool.available_size() == pool.host_pool.size
    pool.check()


@pytest.mark.parametrize(("policy", "least"), [("lru", 7), ("paper", 7), ("density", 14)])
def test_the_host_makes_room_by_a_hundredth_at_a_time(policy: str, least: int) -> None:
    # Choosing costs as much for one leaf as for many, and a full host is asked for room at every node it takes.
    pool = TieredPool(600, policy, host=1400, write="write_through")
    for name in range(60):
        pool.run(text(name, 7), "a")
    pool.evict(10_000)
    for asked, freed in ((1, least), (7, least), (8, 14), (15, 21), (0, 0), (-1, 0)):
        before = pool.host_pool.available_size()
        pool.cache.evict_host(asked)
        assert pool.host_pool.available_size() - before == freed
        pool.check()


@pytest.mark.parametrize(("policy", "least"), [("lru", 7), ("paper", 7), ("density", 14)])
def test_writing_back_is_done_for_a_hundredth_of_the_device_at_a_time(policy: str, least: int) -> None:
    pool = TieredPool(1400, policy, host=1400, write="write_back")
    for name in range(60):
        pool.run(text(name, 7), "a")
    for asked, freed in ((1, least), (7, least), (8, 14), (15, 21), (0, 0), (-1, 0)):
        assert pool.evict(asked) == freed
        pool.check()


def test_write_back_to_a_full_host_drops_kv_and_counts_it() -> None:
    pool = TieredPool(256, "density", host=20, write="write_back")
    for name in range(3):
        pool.run(text(0, 10) + text(name + 1, 60), "a")
    pool.check()
    assert pool.evict(1000) == 190
    pool.check()
    assert resident(pool) == {}
    assert pool.cache.accounting.totals["a"].evicted == 190
    assert pool.allocator.available_size() == 256


def test_kv_that_storage_reads_is_not_dropped_and_stays_counted() -> None:
    pool = TieredPool(256, "density", host=20, write="write_back")
    pool.run(text(0, 60), "a")
    pool.run(text(1, 60), "b")
    reading = next(leaf for leaf in pool.leaves() if leaf.hive.producer == "a")
    reading.protect_host()
    assert pool.evict(1000) == 60
    pool.check()
    assert resident(pool) == {"a": 60}
    reading.release_host()
    assert pool.evict(1000) == 60
    pool.check()
    assert resident(pool) == {}


def test_a_flush_empties_both_tiers() -> None:
    pool = TieredPool(256, "density", host=512, write="write_through")
    pool.run(text(0, 60), "a")
    pool.run(text(1, 60), "a")
    pool.evict(60)
    pool.flush()
    pool.check()
    assert resident(pool) == {}
    assert pool.leaves() == []
    assert pool.host_pool.available_size() == pool.host_pool.size
    assert pool.on_host(text(0, 60)) == 0
    pool.run(text(0, 60), "b")
    pool.check()
    assert resident(pool) == {"b": 60}


def brought(pool: TieredPool, tokens: list[int]) -> None:
    """Storage brings KV to the host."""
    req = pool.request(tokens)
    slots = pool.host_pool.alloc(len(tokens))
    for layer in range(LAYERS):
        pool.host_pool.k_buffer[layer][slots, 0, 0] = torch.tensor(hashes(tokens), dtype=torch.int64)
        pool.host_pool.v_buffer[layer][slots, 0, 0] = torch.tensor(hashes(tokens), dtype=torch.int64) + layer
    key = upstream.RadixKey(req.origin_input_ids)
    assert pool.cache._insert_helper_host(pool.cache.root_node, key, slots, ["hash"] * len(tokens)) == 0
    pool.check()
    assert pool.on_host(tokens) == len(tokens)


def test_kv_that_storage_loads_to_the_host_is_anonymous_until_used() -> None:
    pool = TieredPool(256, "density", host=512, write="write_through")
    pool.run(text(3, 20), "stranger", "run-0")
    tokens = text(0, 40)
    brought(pool, tokens)
    assert pool.run([*tokens, 5], "a", "run-1").matched == 40
    pool.check()
    assert resident(pool) == {"stranger": 20, OTHER: 40, "a": 1}
    assert pool.cache.accounting.held == {"stranger": 20, "a": 41}
    assert pool.agents.window.edges() == [{"agent": "a", "producer": OTHER, "tokens": 40, "events": 1}]
    (node,) = [node.hive for node in subtree(pool.cache.root_node)[1:] if node.hive.producer == OTHER]
    assert (node.agent, node.session, node.shared) == ("a", None, False), "who else uses it nobody knows"


def test_unused_kv_from_storage_belongs_to_the_request_that_computes_it() -> None:
    pool = TieredPool(256, "density", host=512, write="write_through")
    pool.run(text(3, 20), "stranger", "run-0")
    tokens = text(0, 8)  # less than SGLang loads back
    brought(pool, tokens)
    assert pool.run([*tokens, 5], "a", "run-1").matched == 0
    pool.check()
    assert resident(pool) == {"stranger": 20, OTHER: 8, "a": 1}
    assert pool.cache.accounting.held == {"stranger": 20, "a": 9}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda node, cache: setattr(node, "host_value", None),
            "neither on the device nor complete on the host",
        ),
        (lambda node, cache: setattr(node, "host_value", node.host_value[1:]), "nor complete on the host"),
        (lambda node, cache: cache.evictable_host_leaves.clear(), "evictable host leaves"),
    ],
)
def test_integrity_errors_on_the_host_are_named(damage: Callable[[TreeNode, Any], None], words: str) -> None:
    pool = TieredPool(256, "density", host=512, write="write_through")
    pool.run(text(0, 60), "a")
    pool.evict(60)
    pool.cache.check_integrity()
    damage(subtree(pool.cache.root_node)[1], pool.cache)
    with pytest.raises(IntegrityError, match=words):
        pool.cache.check_integrity()


def test_two_ranks_evict_the_same_from_both_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    now, rank = [1e6, 5.0], 0

    def monotonic() -> float:
        now[rank] += (0.001, -0.5)[rank]
        return now[rank]

    monkeypatch.setattr(time, "monotonic", monotonic)
    pools = [TieredPool(300, "density", 4, host=600, write="write_through") for _ in range(2)]
    chance = random.Random(2)
    sizes = set()
    for _ in range(300):
        prompt = random_prompt(chance)
        agent, session = chance.choice(AGENTS), chance.choice(SESSIONS)
        ends = chance.random() < 0.1
        seen = []
        for rank, pool in enumerate(pools):  # noqa: B007
            req = pool.run(prompt, agent, session)
            if ends:
                pool.end_session("s")
            nodes = subtree(pool.cache.root_node)[1:]
            seen.append(
                (
                    req.matched,
                    sorted((path_of(node), node.value is None, node.backuped) for node in nodes),
                )
            )
        assert seen[0] == seen[1]
        sizes.add(len(seen[0][1]))
    assert pools[0].loaded == pools[1].loaded > 500
    assert len(sizes) > 5
    assert pools[0].cache.accounting.summary() == pools[1].cache.accounting.summary()


AGENTS = (None, "a", "b", "c")
SESSIONS = (None, "s", "t")
SEEDS = st.integers(0, 2**16)


def random_prompt(chance: random.Random) -> list[int]:
    """Few words of different lengths, so that prompts share beginnings that end anywhere."""
    words = [text(word, length) for word, length in enumerate((3, 16, 21, 40))]
    prompt = [token for _ in range(chance.randrange(1, 5)) for token in chance.choice(words)]
    return [*prompt, *range(chance.randrange(1, 4))]


class TieredMachine(RuleBasedStateMachine):
    """Traffic over two tiers, of which the host's is larger, as large or smaller."""

    @initialize(
        policy=st.sampled_from(["lru", "paper", "density"]),
        page=st.sampled_from([1, 4, 16]),
        host=st.sampled_from([40, 200, 900]),
        write=st.sampled_from(WRITE_POLICIES),
    )
    def begin(self, policy: str, page: int, host: int, write: str) -> None:
        self.pool = TieredPool(
            320,
            policy,
            page,
            host=host,
            write=write,
            window=WindowSettings(4, 3),
            density=DensitySettings(evidence=50.0, half_life=20),
            max_agents=3,
        )

    @rule(seed=SEEDS)
    def admit(self, seed: int) -> None:
        chance = random.Random(seed)
        if len(self.pool.running) < 3:
            req = self.pool.request(random_prompt(chance), chance.choice(AGENTS), chance.choice(SESSIONS))
            self.pool.admit(req)

    @rule(seed=SEEDS, tokens=st.integers(0, 20), insert=st.booleans())
    def decode_and_finish(self, seed: int, tokens: int, insert: bool) -> None:
        if not self.pool.running:
            return
        req = self.pool.running[seed % len(self.pool.running)]
        for token in range(tokens):
            if self.pool.has_room(1):
                self.pool.decode(req, token % 7)
        self.pool.finish(req, insert)

    @rule()
    def loop(self) -> None:
        self.pool.loop()

    @rule(tokens=st.integers(0, 400))
    def evict(self, tokens: int) -> None:
        before = self.pool.cache.total_size()
        assert self.pool.evict(tokens) == before - self.pool.cache.total_size()

    @rule(tokens=st.integers(1, 100))
    def evict_from_the_host(self, tokens: int) -> None:
        before = self.pool.cache.accounting.summary()
        self.pool.cache.evict_host(tokens)
        assert self.pool.cache.accounting.summary() == before, "what is on the host is not resident"

    @rule(seed=SEEDS)
    def time_passes(self, seed: int) -> None:
        self.pool.time_passes(random.Random(seed))

    @rule(session=st.sampled_from(["s", "t"]))
    def end_session(self, session: str) -> None:
        self.pool.end_session(session)

    @rule()
    def flush(self) -> None:
        self.pool.loop()
        if not self.pool.running:
            self.pool.flush()

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()
            assert strangers(self.pool) == []

    def teardown(self) -> None:
        """When all requests have ended both tiers can be emptied."""
        if not hasattr(self, "pool"):
            return
        for req in list(self.pool.running):
            self.pool.finish(req)
        self.pool.loop()
        self.pool.evict(10_000)
        self.pool.cache.evict_host(10_000)
        self.pool.check()
        assert self.pool.allocator.available_size() == self.pool.size
        assert self.pool.host_pool.available_size() == self.pool.host_pool.size
        assert subtree(self.pool.cache.root_node)[1:] == []


TestTieredMachine = TieredMachine.TestCase
TestTieredMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_the_index_of_leaves_is_the_devices() -> None:
    pool = TieredPool(256, "density", host=512, write="write_through")
    assert isinstance(pool.cache.evictable_leaves, LeafIndex)
    assert type(pool.cache.evictable_host_leaves) is set
