"""Which servers can have a segment store, and what requests and messages are to it as they come and go."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")
pytest.importorskip(
    "sglang.srt.mem_cache.hiradix_cache", reason="of SGLang 0.5.17; later ones have the unified tree"
)

import torch
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool

from hive.server.agents.registry import AgentRegistry
from hive.server.flags.server_args import HiveServerArgs
from hive.server.kv_segments.request import Keep, KvRequest
from sglang_patches.forward.kv_segments import UnsupportedServer, build_cache, require, start
from sglang_patches.requests.kv_state import state_of
from tests.hive.kv_segments.server_arguments import segments_arguments
from tests.sglang_patches.segmented_pool import SegmentedPool, SegmentedRequest
from tests.sglang_patches.test_segmented_cache import SHARED, call, declared, text

# Which servers.


def server_args(prefill: str = "triton", decode: str = "triton", **changed: Any) -> Any:
    """Arguments of a server that can have a store, with these attention backends."""
    return segments_arguments(get_attention_backends=lambda: (prefill, decode), **changed)


def model_config(**changed: Any) -> Any:
    plain = {"attention_arch": AttentionArch.MHA, "is_hybrid_swa": False, "sliding_window_size": None}
    return SimpleNamespace(**{**plain, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"page_size": None},
        {"kv_cache_dtype": "bfloat16"},
        {"prefill": "torch_native", "decode": "torch_native"},
        {"prefill": "flashinfer", "decode": "triton"},
    ],
    ids=str,
)
def test_an_ordinary_server_can_have_a_store(changed: dict[str, Any]) -> None:
    require(server_args(**changed), model_config())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype fp8_e4m3 quantises"),
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm EAGLE"),
        ({"page_size": 16}, "--page-size 16"),
        ({"tp_size": 2}, "--tp-size"),
        ({"dp_size": 2}, "--dp-size"),
        ({"pp_size": 2}, "--pp-size"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode"),
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
        ({"radix_cache_backend": "mine"}, "--radix-cache-backend mine"),
        ({"enable_streaming_session": True}, "--enable-streaming-session"),
        ({"prefill": "fa3"}, "--attention-backend must be .* got fa3"),
        ({"decode": "trtllm_mha"}, "--attention-backend must be .* got trtllm_mha"),
    ],
    ids=str,
)
def test_settings_without_support_for_a_store_are_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedServer, match=f"--hive-kv-segments cannot be used: .*{named}"):
        require(server_args(**changed), model_config())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"attention_arch": AttentionArch.MLA}, "latent attention"),
        ({"is_hybrid_swa": True}, "sliding windows"),
        ({"sliding_window_size": 512}, "sliding windows"),
    ],
    ids=str,
)
def test_models_whose_kv_cannot_be_moved_are_refused(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedServer, match=named):
        require(server_args(), model_config(**changed))


def context(kv: Any, size: int = 64) -> Any:
    """What a cache is built from."""
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(4, 64, "cpu", False),
        token_to_kv_pool_allocator=TokenToKVPoolAllocator(size, torch.float16, "cpu", kv, False),
        page_size=1,
    )
    return SimpleNamespace(params=params)


def plain_pool(size: int = 64) -> MHATokenToKVPool:
    return MHATokenToKVPool(size, 1, torch.float16, 2, 4, 3, "cpu", enable_memory_saver=False)


BYTES_PER_TOKEN = 2 * 2 * 4 * 3 * 2
"""Bytes, heads, their size, layers, keys and values."""


def built(ctx: Any, **flags: int) -> Any:
    return build_cache(ctx, HiveServerArgs(kv_segments=True, **flags), agents=AgentRegistry(4), policy=None)


def test_a_store_has_as_many_tokens_as_the_flags_give_it_bytes() -> None:
    cache = built(
        context(plain_pool()),
        kv_segments_bytes=20 * BYTES_PER_TOKEN + 1,
        kv_segments_host_bytes=7 * BYTES_PER_TOKEN,
    )
    assert (cache.store.capacity, cache.store.host_capacity) == (20, 7)


def test_a_store_has_half_of_the_pool_by_default() -> None:
    cache = built(context(plain_pool()))
    assert (cache.store.capacity, cache.store.host_capacity) == (32, 0)


def test_a_store_cannot_have_more_than_the_pool() -> None:
    with pytest.raises(UnsupportedServer, match="allows 65 tokens, but the KV pool has only 64"):
        built(context(plain_pool()), kv_segments_bytes=65 * BYTES_PER_TOKEN)


def test_pools_that_do_not_keep_plain_keys_and_values_are_refused() -> None:
    latent = MLATokenToKVPool(
        64,
        1,
        torch.float16,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    with pytest.raises(UnsupportedServer, match="KV pool is a MLATokenToKVPool"):
        built(context(latent))


def test_a_cache_without_a_store_ends_the_server() -> None:
    scheduler: Any = SimpleNamespace(tree_cache=SimpleNamespace())
    with pytest.raises(UnsupportedServer, match="the radix cache is a SimpleNamespace"):
        start(scheduler)


# Requests and messages.


def test_a_request_carries_its_request_to_the_store() -> None:
    pool = SegmentedPool(64, capacity=32)
    prompt, asked = declared(text(0, 3), ("producer", SHARED), [1], corrector={"kind": "blend"})
    req = pool.arrive(prompt, asked, tenant="t", adapter="lora")
    state = state_of(req)
    assert state is not None
    assert pool.kv.states == {req.rid: state}
    assert (state.request, state.tenant, state.adapter) == (asked, "t", "lora")
    assert (state.tokens, state.corrector.probes) == (array("q", prompt), True)
    assert req.customized_info == {"hive_kv": [state.counts]}


def test_other_customized_info_is_kept() -> None:
    pool = SegmentedPool(64, capacity=32)
    asked = KvRequest(keeps=(Keep(0, 2, "producer"),))
    req = SegmentedRequest("one", [1, 2, 3], asked)
    req.customized_info = {"other": [1]}
    pool.kv.arrived(req)
    assert req.customized_info is not None
    assert set(req.customized_info) == {"other", "hive_kv"}


def test_a_request_that_asks_for_nothing_is_not_known() -> None:
    pool = SegmentedPool(64, capacity=32)
    for params in (None, {"hive": {"tenant": "t"}}):
        req = SegmentedRequest("one", [1, 2], None)
        req.sampling_params.custom_params = params
        pool.kv.arrived(req)
        pool.kv.release(req)
        assert (state_of(req), req.customized_info, pool.kv.states) == (None, None, {})


def test_one_that_departs_takes_no_other_of_its_id_along() -> None:
    pool = SegmentedPool(64, capacity=32)
    first, second = (SegmentedRequest("same", *call("m", [1, 2, 3])) for _ in range(2))
    pool.kv.arrived(first)
    pool.kv.arrived(second)
    pool.kv.release(first)
    assert pool.kv.states == {"same": second.state}
    pool.kv.release(second)
    pool.kv.release(second)
    assert pool.kv.states == {}


def test_all_messages_that_are_named_are_dropped_under_every_adapter() -> None:
    pool = SegmentedPool(128, capacity=64)
    pool.serve(*call("one", text(0, 4)), tenant="t")
    pool.serve(*call("one", text(0, 4)), tenant="t", adapter="lora")
    pool.serve(*call("two", text(1, 4)), tenant="t")
    pool.serve(*call("three", text(2, 4)), tenant="t")
    assert pool.kv.drop("t", ["one", "three", "never made"]) == 3
    assert [segment.key.name for segment in pool.cache.store] == ["message:two"]
    pool.check()


def test_new_weights_drop_segments_in_use_and_on_the_host() -> None:
    pool = SegmentedPool(128, capacity=64, host=64)
    pool.serve(*call("saved", text(0, 4)))
    pool.serve(*call("read", text(1, 4)))
    req = pool.arrive(*call("new", text(2, 4), ("read", text(1, 4), 3)))
    assert pool.enter(req)
    pool.evict(128)
    assert pool.cache.store.on_host
    pool.kv.forget()
    assert (len(pool.cache.store), pool.cache.store.on_host) == (0, 0)
    pool.check()
    pool.step()
    pool.finish(req)
    pool.check()
    assert [segment.key.name for segment in pool.cache.store] == ["message:new"]
