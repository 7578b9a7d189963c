"""Hook on ``sglang.srt.mem_cache.registry``: replaces SGLang's radix caches with Hive's.

Other kinds of caches (sliding windows, state-space models, LMCache, the C++ and the unified tree) are unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hive.server.eviction.policies import ENGINE_POLICIES, policy_of
from hive.server.flags.server_args import HiveServerArgs
from sglang_patches.cache.selection import other_cache, registry_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext


logger = logging.getLogger(__name__)


def around_default_radix_cache_factory(original: Callable[..., Any], ctx: TreeCacheBuildContext) -> Any:
    """Build Hive's subclass if SGLang would build one of the two caches that it extends."""
    from sglang_patches.cache.radix_cache import HiveRadixCache

    args = HiveServerArgs.from_environment()
    if args.eviction in ENGINE_POLICIES:
        ctx.params.eviction_policy = args.eviction
    other = other_cache(ctx)
    if other is not None and args.kv_segments:
        from sglang_patches.forward.kv_segments import FLAG, UnsupportedServer

        raise UnsupportedServer(f"{FLAG} cannot be used: {other}")
    if other is not None:
        logger.warning(
            "Hive: SGLang's own policy %s evicts KV, and --hive-eviction %s is ignored: %s",
            ctx.params.eviction_policy,
            args.eviction,
            other,
        )
        return original(ctx)
    agents = registry_of(args)
    policy = policy_of(args.eviction, agents.window.score)
    logger.info("Hive: eviction policy: %s", args.eviction)
    if args.kv_segments:
        from sglang_patches.forward.kv_segments import build_cache, require

        require(ctx.server_args, ctx.model_config)
        return build_cache(ctx, args, agents=agents, policy=policy)
    if not ctx.enable_hierarchical_cache:
        return HiveRadixCache(ctx.params, agents=agents, policy=policy)

    from sglang_patches.cache.hiradix_cache import HiveHiRadixCache

    cache = HiveHiRadixCache(ctx.params, ctx.server_args, agents=agents, policy=policy)
    ctx.tp_worker.register_hicache_layer_transfer_counter(cache.cache_controller.layer_done_counter)
    return cache
