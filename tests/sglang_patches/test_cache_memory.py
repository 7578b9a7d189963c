"""The Logits Cache under memory pressure: looked at now and then, agreed upon by all ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="needs the server extra: uv pip install 'hive[server]'")

from hive.server.logits_cache.cache import LogitsCache
from hive.server.logits_cache.sampling import SamplingRule
from sglang_patches.scheduling import cache_memory
from sglang_patches.scheduling.cache_memory import IDLE_LOOPS, LOOPS, CacheMemory
from tests.hive.logits_cache.test_cache import ALL, ToyModel, serve

RULE = SamplingRule.of(1.0, ALL, 1.0, 0.0)
CAPACITY = 2**20


@pytest.fixture
def cache() -> LogitsCache:
    cache = LogitsCache(CAPACITY)
    for seed in range(40):
        serve(ToyModel(12), cache, [1, seed], RULE, seed, 12)
    assert len(cache.trie) > 100
    return cache


def watch(cache: LogitsCache, free: Iterator[int | None], least_free: int = 1000) -> CacheMemory:
    return CacheMemory(cache, least_free, lambda number: number, lambda: next(free))


def loops(memory: CacheMemory, count: int = LOOPS) -> None:
    for _ in range(count):
        memory.step()


def test_the_cache_shrinks_when_memory_is_short_and_grows_again(
    cache: LogitsCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[int] = []
    monkeypatch.setattr(cache_memory, "WORTH_TRIMMING", 1)
    monkeypatch.setattr(cache_memory, "give_back", lambda: returned.append(1))
    used = cache.nbytes
    memory = watch(cache, iter([1000, 1000 - used // 2, 0, 10**9]))
    loops(memory)
    assert cache.nbytes == used
    with caplog.at_level(logging.WARNING):
        loops(memory)
        loops(memory)
    assert used // 2 - 4000 < cache.nbytes + 1000 <= used - used // 2
    assert cache.summary()["bytes_given_up"] == used - cache.nbytes
    assert len(caplog.records) == 1, "said once, not at every look"
    assert len(returned) == 2
    cache.check_integrity()
    loops(memory)
    assert cache.budget_bytes == CAPACITY


def test_it_shrinks_to_nothing_and_still_serves(cache: LogitsCache) -> None:
    loops(watch(cache, iter([0]), least_free=2**40))
    assert (cache.nbytes, len(cache.trie), cache.budget_bytes) == (0, 0, 0)
    plain, _ = serve(ToyModel(12), None, [7], RULE, 1, 12)
    for _ in range(2):
        assert serve(ToyModel(12), cache, [7], RULE, 1, 12) == (plain, 0)
    assert cache.nbytes == 0
    cache.check_integrity()


def test_it_is_looked_at_by_the_number_of_loops(cache: LogitsCache) -> None:
    looks: list[int] = []

    def read() -> int:
        looks.append(1)
        return 2**40

    memory = CacheMemory(cache, 1, lambda number: number, read)
    loops(memory, 3 * LOOPS - 1)
    assert len(looks) == 2
    for _ in range(LOOPS // IDLE_LOOPS):
        memory.step(IDLE_LOOPS)
    assert len(looks) == 3, "a sleeping scheduler looks within seconds"


def test_all_ranks_take_the_least_budget() -> None:
    caches = [LogitsCache(CAPACITY) for _ in range(2)]
    for cache in caches:
        for seed in range(40):
            serve(ToyModel(12), cache, [1, seed], RULE, seed, 12)
    used = caches[0].nbytes
    free = [2**40, 1000 - used // 3]
    for cache in caches:
        loops(CacheMemory(cache, 1000, lambda _number: min(free) - 1000, lambda: free[0]))
    assert caches[0].budget_bytes == caches[1].budget_bytes < used
    assert list(caches[0].trie._nodes) == list(caches[1].trie._nodes)


@pytest.mark.parametrize(
    ("least_free", "stages", "contexts", "watched"),
    [(1, 1, 1, True), (0, 1, 1, False), (1, 2, 1, False), (1, 1, 2, False)],
)
def test_who_watches(cache: LogitsCache, least_free: int, stages: int, contexts: int, watched: bool) -> None:
    scheduler = SimpleNamespace(
        server_args=SimpleNamespace(pp_size=stages),
        attn_cp_group=SimpleNamespace(world_size=contexts),
        dp_tp_group=SimpleNamespace(world_size=1, cpu_group=None),
    )
    memory = CacheMemory.of(scheduler, cache, least_free)  # type: ignore[arg-type]
    assert (memory is not None) is watched
    assert CacheMemory.of(scheduler, None, least_free) is None  # type: ignore[arg-type]
    if memory is not None:
        loops(memory)
        assert cache.budget_bytes <= CAPACITY
