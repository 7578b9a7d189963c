"""What Hive keeps in a scheduler process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hive.server.agents.registry import AgentRegistry
from hive.server.agents.tenant import EVERYTHING, View
from hive.server.eviction.book import NOT_RESIDENT
from hive.server.logits_cache.cache import LogitsCache
from sglang_patches.scheduling.live_events import LiveEvents
from sglang_patches.scheduling.metrics import SchedulerMetrics
from sglang_patches.scheduling.steps import Steps

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

    from sglang_patches.cache.radix_cache import AgentAware
    from sglang_patches.forward.decode_rows import DecodeRows
    from sglang_patches.forward.kv_forward import KvForward
    from sglang_patches.scheduling.cache_memory import CacheMemory


@dataclass(slots=True)
class SchedulerState:
    """What Hive keeps in a scheduler process."""

    agents: AgentRegistry
    tree: AgentAware | None
    """None where SGLang's own kind of radix cache serves."""
    cache: LogitsCache | None
    """None when ``--no-hive-logits-cache`` was given or another sampler runs."""
    metrics: SchedulerMetrics | None
    share_tenants: Literal["nothing", "kv", "everything"]
    replaying: list[Req]
    """Requests with a replay that goes on, or waits; each loop of the scheduler gives every one of them a slice."""
    drawing: list[Req]
    """Distinct samples that are being drawn."""
    rows: DecodeRows | None = None
    """What goes through the model as decode rows; None on a release of SGLang where nothing can."""
    answers: dict[int, Req] = field(default_factory=dict)
    """By identity, requests of this loop with replayed tokens that are to be sent on."""
    joined: int = 0
    """Replayed requests that entered the decode batch without a prefill."""
    lent: int = 0
    """Those of them whose KV was in the slots of a request that still ran."""
    steps: Steps = field(default_factory=Steps)
    memory: CacheMemory | None = None
    """None where the Logits Cache need not mind what the host has left."""
    live: LiveEvents = field(default_factory=LiveEvents)
    kv: KvForward | None = None
    """None without ``--hive-kv-segments``."""

    @property
    def waiting(self) -> int:
        """Of those that replay: for a row that the model computes for another one, or for an earlier sample."""
        return sum(req.hive.cached.awaits is not None for req in self.replaying)

    def summary(self, view: View = EVERYTHING) -> dict[str, Any]:
        """All there is to tell; of what is not of the view, :meth:`View.of` takes out more."""
        cache = self.cache.summary() if self.cache else None
        if cache is not None:
            cache |= {
                "replaying": len(self.replaying),
                "waiting": self.waiting,
                "joined": self.joined,
                "lent": self.lent,
            }
        known = self.agents.summary(view)
        if self.tree is not None:
            residency = self.tree.book.summary()
            for agent in known["agents"]:
                agent |= residency.get(agent["name"], NOT_RESIDENT)
        tree = self.tree.summary() if self.tree is not None else None
        return {"logits_cache": cache, "radix_cache": tree, "scheduler": self.steps.summary(), **known}
