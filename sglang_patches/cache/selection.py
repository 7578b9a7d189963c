"""Selects the radix cache, and creates the agent registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hive.server.agents.registry import AgentRegistry
from hive.server.flags.server_args import HiveServerArgs
from sglang_patches.contract.releases import current

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

    from sglang_patches.cache.radix_cache import AgentAware


def agent_aware(cache: Any) -> AgentAware | None:
    """Return Hive's radix cache, unwrapped from SGLang's wrappers; None if SGLang's own cache is used."""
    from sglang_patches.cache.radix_cache import AgentAware

    inner = getattr(cache, "inner", cache)
    return inner if isinstance(inner, AgentAware) else None


def other_cache(ctx: TreeCacheBuildContext) -> str | None:
    """Return why SGLang builds a cache that Hive does not extend; None if Hive extends it."""
    reasons = current().other_caches(ctx)
    return next((reason for reason, holds in reasons.items() if holds), None)


def registry_of(args: HiveServerArgs) -> AgentRegistry:
    """Return an empty registry with the limits from the flags."""
    return AgentRegistry(args.max_agents, window=args.window, max_tenant_agents=args.max_tenant_agents)
