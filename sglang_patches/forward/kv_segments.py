"""The segment store in a scheduler process: whether it can be had, and how it is put together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hive.server.flags.refused_settings import segments_refusal
from hive.server.flags.server_args import HiveServerArgs
from hive.server.kv_segments.rotation import UnsupportedRope
from hive.server.kv_segments.slots import KvSlots
from sglang_patches.cache.segmented_cache import SegmentedRadixCache
from sglang_patches.contract import releases
from sglang_patches.forward.kv_forward import KvForward
from sglang_patches.forward.rotary_embedding import rope_of
from sglang_patches.forward.virtual_rows import BACKENDS

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

logger = logging.getLogger(__name__)

FLAG = "--hive-kv-segments"


class UnsupportedServer(ValueError):
    """What this server serves, or how, does not go with the segment store."""


def build_cache(ctx: TreeCacheBuildContext, args: HiveServerArgs, **of_hive: Any) -> SegmentedRadixCache:
    """The radix cache with a segment store beside it.

    Raises:
        UnsupportedServer: naming what does not go with it.
    """
    pool = ctx.params.token_to_kv_pool_allocator
    kv = pool.get_kvcache()
    _require_plain_kv(kv)
    bytes_per_token = sum(layer[0].nbytes for layer in (*kv.k_buffer, *kv.v_buffer))
    capacity = args.kv_segments_bytes // bytes_per_token or pool.size // 2
    if capacity > pool.size:
        raise UnsupportedServer(
            f"--hive-kv-segments-bytes asks for {capacity} tokens, and the KV pool has {pool.size}"
        )
    host = args.kv_segments_host_bytes // bytes_per_token
    logger.info("Hive: KV of segments takes up to %d tokens on the device, %d on the host", capacity, host)
    return SegmentedRadixCache(ctx.params, capacity=capacity, host_capacity=host, **of_hive)


def _require_plain_kv(kv: Any) -> None:
    """Raise UnsupportedServer unless a pool has keys and values of every layer, as they were computed."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    if type(kv) is not MHATokenToKVPool:
        raise UnsupportedServer(
            f"{FLAG} needs a model with keys and values of their own in every layer, kept as they were computed "
            f"(multi-head or grouped-query attention); this server's KV pool is a {type(kv).__name__}"
        )


def require(server_args: Any, model_config: Any) -> None:
    """Whether a server with these arguments can have a segment store.

    Raises:
        UnsupportedServer: naming what does not go with it, and what to do.
    """
    from sglang.srt.configs.model_config import AttentionArch

    others = sorted({*server_args.get_attention_backends()} - {*BACKENDS})
    of_model = (
        (
            model_config.attention_arch == AttentionArch.MLA,
            "the model has multi-head latent attention, whose keys have no position to be moved from",
        ),
        (
            model_config.is_hybrid_swa or getattr(model_config, "sliding_window_size", None) is not None,
            "the model has sliding windows: moved KV would leave its window",
        ),
    )
    found = next((reason for holds, reason in of_model if holds), None)
    found = found or segments_refusal(server_args, releases.installed())
    if not found and others:
        found = f"--attention-backend must be {' or '.join(BACKENDS)}, got {' and '.join(others)}"
    if found:
        raise UnsupportedServer(f"{FLAG} cannot be had: {found}")


def start(scheduler: Scheduler) -> KvForward:
    """Give the model runner what it needs to move KV and to compute virtual rows.

    Raises:
        UnsupportedServer: where the model turns its keys in a way that cannot be followed, and where the cache is one
            that was built past :func:`build_cache`.
    """
    cache = scheduler.tree_cache
    if not isinstance(cache, SegmentedRadixCache):
        raise UnsupportedServer(
            f"{FLAG} cannot be had: the radix cache is a {type(cache).__name__}, which has no segment store beside it"
        )
    runner = scheduler.tp_worker.model_runner
    kv = runner.token_to_kv_pool
    try:
        rope = rope_of(runner.model, scheduler.model_config.hf_text_config)
    except UnsupportedRope as error:
        raise UnsupportedServer(f"{FLAG} cannot be had: {error}") from None
    slots = KvSlots(kv.k_buffer, kv.v_buffer, rope)
    forward = runner.hive_kv = KvForward(runner, cache, slots, runner.hive_decode_rows)
    return forward
