"""Sets up the segment store in a scheduler process, and checks whether the server supports it."""

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
    """The served model, or a setting, does not support the segment store."""


def build_cache(ctx: TreeCacheBuildContext, args: HiveServerArgs, **of_hive: Any) -> SegmentedRadixCache:
    """Build the radix cache with a segment store.

    Raises:
        UnsupportedServer: naming what does not support it.
    """
    pool = ctx.params.token_to_kv_pool_allocator
    kv = pool.get_kvcache()
    _require_plain_kv(kv)
    bytes_per_token = sum(layer[0].nbytes for layer in (*kv.k_buffer, *kv.v_buffer))
    capacity = args.kv_segments_bytes // bytes_per_token or pool.size // 2
    if capacity > pool.size:
        raise UnsupportedServer(
            f"--hive-kv-segments-bytes allows {capacity} tokens, but the KV pool has only {pool.size}"
        )
    host = args.kv_segments_host_bytes // bytes_per_token
    logger.info(
        "Hive: the segment store holds up to %d tokens on the device and %d on the host", capacity, host
    )
    return SegmentedRadixCache(ctx.params, capacity=capacity, host_capacity=host, **of_hive)


def _require_plain_kv(kv: Any) -> None:
    """Raise UnsupportedServer unless a pool holds the computed keys and values of every layer."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    if type(kv) is not MHATokenToKVPool:
        raise UnsupportedServer(
            f"{FLAG} needs a model with separate keys and values in every layer, stored as computed "
            f"(multi-head or grouped-query attention); this server's KV pool is a {type(kv).__name__}"
        )


def require(server_args: Any, model_config: Any) -> None:
    """Check that a server with these arguments supports a segment store.

    Raises:
        UnsupportedServer: naming what does not support it, and what to do.
    """
    from sglang.srt.configs.model_config import AttentionArch

    others = sorted({*server_args.get_attention_backends()} - {*BACKENDS})
    of_model = (
        (
            model_config.attention_arch == AttentionArch.MLA,
            "the model uses multi-head latent attention, whose cached keys cannot be moved to other positions",
        ),
        (
            model_config.is_hybrid_swa or getattr(model_config, "sliding_window_size", None) is not None,
            "the model uses sliding windows, which moved KV would leave",
        ),
    )
    found = next((reason for holds, reason in of_model if holds), None)
    found = found or segments_refusal(server_args, releases.installed())
    if not found and others:
        found = f"--attention-backend must be {' or '.join(BACKENDS)}, got {' and '.join(others)}"
    if found:
        raise UnsupportedServer(f"{FLAG} cannot be used: {found}")


def start(scheduler: Scheduler) -> KvForward:
    """Set up the model runner to move KV and to compute virtual rows.

    Raises:
        UnsupportedServer: if the model's RoPE is not supported, or if the cache was not built by :func:`build_cache`.
    """
    cache = scheduler.tree_cache
    if not isinstance(cache, SegmentedRadixCache):
        raise UnsupportedServer(
            f"{FLAG} cannot be used: the radix cache is a {type(cache).__name__}, which has no segment store"
        )
    runner = scheduler.tp_worker.model_runner
    kv = runner.token_to_kv_pool
    try:
        rope = rope_of(runner.model, scheduler.model_config.hf_text_config)
    except UnsupportedRope as error:
        raise UnsupportedServer(f"{FLAG} cannot be used: {error}") from None
    slots = KvSlots(kv.k_buffer, kv.v_buffer, rope)
    forward = runner.hive_kv = KvForward(runner, cache, slots, runner.hive_decode_rows)
    return forward
