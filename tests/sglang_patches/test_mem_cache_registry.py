"""Which radix cache serves: Hive's where SGLang would build one that it extends, and SGLang's own anywhere else."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")
pytest.importorskip(
    "sglang.srt.mem_cache.hiradix_cache", reason="of SGLang 0.5.17; later ones have the unified tree"
)

from sglang.srt.mem_cache import hiradix_cache as upstream_hiradix
from sglang.srt.mem_cache import registry as upstream
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.evict_policy import LFUStrategy, SLRUStrategy
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.session.streaming_session import StreamingSession

import sglang_patches.cache.hiradix_cache
from hive.server.agents.registry import OTHER
from hive.server.eviction.policies.contribution import ContributionPolicy
from hive.server.eviction.policies.density import DensityPolicy
from hive.server.flags.server_args import ENVIRONMENT_VARIABLE, HiveServerArgs
from sglang_patches.cache.radix_cache import HiveRadixCache
from sglang_patches.cache.selection import agent_aware, other_cache
from sglang_patches.hooks.mem_cache_registry import around_default_radix_cache_factory
from tests.sglang_patches.kv_pool import KvPool

SWITCHES = (
    "disable_radix_cache",
    "is_hybrid_swa",
    "is_hybrid_ssm",
    "enable_hierarchical_cache",
    "is_dsa",
    "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE",
    "SGLANG_ENABLE_UNIFIED_RADIX_TREE",
    "enable_lmcache",
    "enable_flexkv",
)
"""All that SGLang's factory looks at."""

REASONS = {
    ("disable_radix_cache",): "the radix cache is disabled",
    ("is_hybrid_swa",): "the model has sliding windows",
    ("is_hybrid_ssm",): "the model has state-space layers",
    ("enable_hierarchical_cache", "is_dsa"): "sparse attention uses a separate cache",
    ("SGLANG_EXPERIMENTAL_CPP_RADIX_TREE",): "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE is set",
    ("SGLANG_ENABLE_UNIFIED_RADIX_TREE",): "the unified tree is enabled",
    ("enable_lmcache",): "LMCache is enabled",
    ("enable_flexkv",): "FlexKV is enabled",
}


class Worker:
    """Of SGLang's model worker, what the factory calls."""

    def __init__(self) -> None:
        self.registered: list[object] = []

    def register_hicache_layer_transfer_counter(self, counter: object) -> None:
        self.registered.append(counter)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that makes what SGLang's factory is given, with some switches on."""

    def make(*switches: str) -> Any:
        on = dict.fromkeys(SWITCHES, False) | dict.fromkeys(switches, True)
        for name in SWITCHES:
            if name.isupper():
                monkeypatch.setenv(name, str(on.pop(name)))
        flags = {name: on.pop(name) for name in ("enable_lmcache", "enable_flexkv")}
        params = KvPool(64).params
        params.disable = on["disable_radix_cache"]
        return upstream.TreeCacheBuildContext(
            server_args=SimpleNamespace(**flags, flexkv_config_file=None),
            params=params,
            effective_chunked_prefill_size=8192,
            tp_worker=Worker(),
            model_config=None,
            tp_size=1,
            tp_rank=0,
            tp_group=None,
            **on,
        )

    return make


@pytest.fixture
def upstreams_choice(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """A function that tells which cache SGLang's own factory builds.

    RadixCache and ChunkCache are real; for those that need a GPU, or packages, a stand-in tells that they were chosen.
    """

    def stand_in(name: str) -> Callable[..., Any]:
        made = SimpleNamespace(name=name, cache_controller=SimpleNamespace(layer_done_counter=None))
        return lambda *_args, **_kwargs: made

    monkeypatch.setattr(upstream_hiradix, "HiRadixCache", stand_in("HiRadixCache"))
    monkeypatch.setattr(upstream, "_create_unified_radix_cache", stand_in("UnifiedRadixCache"))
    for module, attribute in (
        ("radix_cache_cpp", "RadixCacheCpp"),
        ("storage.lmcache.lmc_radix_cache", "LMCRadixCache"),
        ("storage.flexkv", "_flexkv_factory"),
    ):
        fake = ModuleType(module)
        setattr(fake, attribute, stand_in(attribute))
        monkeypatch.setitem(sys.modules, f"sglang.srt.mem_cache.{module}", fake)

    def choose(ctx: Any) -> str:
        cache = upstream.default_radix_cache_factory(ctx)
        return getattr(cache, "name", type(cache).__name__)

    return choose


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that builds a cache under flags of Hive's, where SGLang's own factory gives a string."""

    def serve(ctx: Any, **flags: Any) -> Any:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
        HiveServerArgs(**flags).to_environment()
        return around_default_radix_cache_factory(lambda given: ("SGLang's own", given), ctx)

    return serve


# What SGLang would build.


def test_without_switches_sglang_builds_the_cache_that_ours_extends(
    context: Callable[..., Any], upstreams_choice: Callable[[Any], str]
) -> None:
    assert other_cache(context()) is None
    assert upstreams_choice(context()) == RadixCache.__name__ == HiveRadixCache.__bases__[1].__name__
    assert other_cache(context("is_dsa")) is None
    assert upstreams_choice(context("is_dsa")) == "RadixCache"


def test_with_two_tiers_sglang_builds_the_cache_that_ours_extends(
    context: Callable[..., Any], upstreams_choice: Callable[[Any], str]
) -> None:
    assert other_cache(context("enable_hierarchical_cache")) is None
    assert upstreams_choice(context("enable_hierarchical_cache")) == "HiRadixCache"
    bases = sglang_patches.cache.hiradix_cache.HiveHiRadixCache.__bases__
    assert [base.__name__ for base in bases] == ["AgentAware", "HiRadixCache"]


@pytest.mark.parametrize(("switches", "reason"), REASONS.items(), ids=lambda value: str(value))
def test_every_other_cache_has_its_reason(
    context: Callable[..., Any],
    upstreams_choice: Callable[[Any], str],
    switches: tuple[str, ...],
    reason: str,
) -> None:
    ctx = context(*switches)
    assert other_cache(ctx) == reason
    assert upstreams_choice(ctx) not in ("RadixCache", "HiRadixCache")


def test_hives_cache_serves_only_where_sglang_builds_one_that_it_extends(
    context: Callable[..., Any], upstreams_choice: Callable[[Any], str]
) -> None:
    ours = 0
    for values in product((False, True), repeat=len(SWITCHES)):
        on = [name for name, value in zip(SWITCHES, values, strict=True) if value]
        ctx = context(*on)
        if other_cache(ctx) is None:
            ours += 1
            expected = "HiRadixCache" if "enable_hierarchical_cache" in on else "RadixCache"
            assert upstreams_choice(ctx) == expected, on
    # With or without a second tier, and without one whatever is said of sparse attention.
    assert ours == 3


# What is built.


@pytest.mark.parametrize(("eviction", "policy"), [("paper", ContributionPolicy), ("density", DensityPolicy)])
def test_our_cache_is_built_with_the_policy_of_the_flag(
    context: Callable[..., Any], served: Callable[..., Any], eviction: str, policy: type
) -> None:
    cache = served(context(), eviction=eviction)
    assert type(cache) is HiveRadixCache
    assert type(cache.policy) is policy
    assert cache.summary()["policy"] == eviction
    assert agent_aware(cache) is cache


@pytest.mark.parametrize(("eviction", "strategy"), [("lfu", LFUStrategy), ("slru", SLRUStrategy)])
def test_a_policy_of_sglangs_is_set_where_sglang_reads_it(
    context: Callable[..., Any], served: Callable[..., Any], eviction: str, strategy: type
) -> None:
    cache = served(context(), eviction=eviction)
    assert type(cache) is HiveRadixCache
    assert cache.policy is None
    assert type(cache.eviction_strategy) is strategy
    assert cache.summary()["policy"] == eviction


def test_the_engines_flag_decides_about_its_own_eviction(
    context: Callable[..., Any], served: Callable[..., Any]
) -> None:
    ctx = context()
    ctx.params.eviction_policy = "slru"
    cache = served(ctx, eviction="engine")
    assert type(cache) is HiveRadixCache
    assert type(cache.eviction_strategy) is SLRUStrategy


def test_profiles_are_as_the_flags_say(context: Callable[..., Any], served: Callable[..., Any]) -> None:
    flags: dict[str, Any] = {"round_requests": 3, "window_rounds": 5, "collaborative_weight": 0.25}
    cache = served(context(), max_agents=1, **flags)
    assert cache.agents.window.settings == HiveServerArgs(**flags).window
    assert [cache.agents.profile(name).name for name in ("a", "b")] == ["a", OTHER]
    assert isinstance(cache.policy, DensityPolicy)


def test_two_tiers_are_built_and_the_worker_learns_of_their_copies(
    context: Callable[..., Any], served: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []

    def build(params: Any, server_args: Any, *, agents: Any, policy: Any) -> Any:
        controller = SimpleNamespace(layer_done_counter="counter")
        built.append(
            SimpleNamespace(params=params, args=server_args, policy=policy, cache_controller=controller)
        )
        return built[-1]

    monkeypatch.setattr(sglang_patches.cache.hiradix_cache, "HiveHiRadixCache", build)
    ctx = context("enable_hierarchical_cache")
    cache = served(ctx, eviction="paper")
    assert [cache] == built
    assert (cache.params, cache.args, cache.policy.name) == (ctx.params, ctx.server_args, "paper")
    assert ctx.tp_worker.registered == ["counter"]


@pytest.mark.parametrize(
    ("eviction", "engines", "decides"),
    [("density", "slru", "slru"), ("paper", "lru", "lru"), ("lfu", "lru", "lfu")],
)
@pytest.mark.parametrize(("switches", "reason"), REASONS.items(), ids=lambda value: str(value))
def test_a_warning_names_why_sglangs_own_cache_serves(
    context: Callable[..., Any],
    served: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    switches: tuple[str, ...],
    reason: str,
    eviction: str,
    engines: str,
    decides: str,
) -> None:
    ctx = context(*switches)
    ctx.params.eviction_policy = engines
    with caplog.at_level(logging.WARNING):
        assert served(ctx, eviction=eviction) == ("SGLang's own", ctx)
    assert ctx.params.eviction_policy == decides
    (warning,) = caplog.messages
    assert f"SGLang's own policy {decides} evicts KV" in warning
    assert f"--hive-eviction {eviction}" in warning
    assert reason in warning


# What the scheduler finds.


def test_our_cache_is_found_inside_of_a_streaming_session() -> None:
    cache = KvPool(64).cache
    assert agent_aware(StreamingSession(cache)) is cache


def test_caches_of_sglangs_are_not_taken_for_ours() -> None:
    params = KvPool(64).params
    for other in (RadixCache(params), ChunkCache(params), StreamingSession(RadixCache(params))):
        assert agent_aware(other) is None
