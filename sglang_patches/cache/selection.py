"""Which radix cache serves, and the agents that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hive.server.agents.registry import AgentRegistry
from hive.server.flags.server_args import HiveServerArgs
from sglang_patches.contract.releases import current

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

    from sglang_patches.cache.radix_cache import AgentAware


def agent_aware(cache: Any) -> AgentAware | None:
    """Hive's radix cache, out of whatever SGLang has wrapped it in; None where it serves with one of its own."""
    from sglang_patches.cache.radix_cache import AgentAware

    inner = getattr(cache, "inner", cache)
    return inner if isinstance(inner, AgentAware) else None


def other_cache(ctx: TreeCacheBuildContext) -> str | None:
    """Why SGLang builds another cache than the two that Hive extends; None where it builds one of them."""
    reasons = current().other_caches(ctx)
    return next((reason for reason, holds in reasons.items() if holds), None)


def registry_of(args: HiveServerArgs) -> AgentRegistry:
    """An empty registry with the bounds of the flags."""
    return AgentRegistry(args.max_agents, window=args.window, max_tenant_agents=args.max_tenant_agents)
