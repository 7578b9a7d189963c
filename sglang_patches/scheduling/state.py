"""Hive's state in a scheduler process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hive.server.agents.registry import AgentRegistry
from hive.server.agents.tenant import EVERYTHING, View
from hive.server.eviction.accounting import NOT_RESIDENT
from hive.server.logits_cache.cache import LogitsCache
from hive.server.traffic_record import TrafficRecord
from sglang_patches.scheduling.branches import Branches
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
    """Hive's state in a scheduler process."""

    agents: AgentRegistry
    tree: AgentAware | None
    """None if one of SGLang's own caches is used."""
    cache: LogitsCache | None
    """None if ``--no-hive-logits-cache`` was given or another sampler runs."""
    metrics: SchedulerMetrics | None
    share_tenants: Literal["nothing", "kv", "everything"]
    replaying: list[Req]
    """Requests whose replay is in progress or waiting; each scheduler loop gives each of them a slice."""
    drawing: list[Req]
    """Distinct samples that are being drawn."""
    rows: DecodeRows | None = None
    """Decides which batches run as decode rows; None on a release of SGLang that does not support them."""
    pending_outputs: dict[int, Req] = field(default_factory=dict)
    """Requests of this loop with replayed tokens that have yet to be sent, by identity."""
    joined: int = 0
    """Replayed requests that entered the decode batch without a prefill."""
    shared_prefix: int = 0
    """Joined requests whose KV was in the slots of a request that was still running."""
    time: float = 0.0
    """The latest stamp of a request or message, in seconds: the time of all decisions, equal on all ranks."""
    hints: Counter[str] = field(default_factory=Counter)
    """Hints by what they say: an event, ``kv_priority``, ``retain`` or ``discard``."""
    branches: Branches = field(default_factory=Branches)
    steps: Steps = field(default_factory=Steps)
    memory: CacheMemory | None = None
    """None if the Logits Cache need not watch the host's free memory."""
    live: LiveEvents = field(default_factory=LiveEvents)
    kv: KvForward | None = None
    """None without ``--hive-kv-segments``."""
    record: TrafficRecord | None = None
    """None without ``--hive-record-traffic``, and on all ranks but one."""

    @property
    def waiting(self) -> int:
        """Requests in replay that wait: for a row that the model computes for another request, or for an earlier
        sample.
        """
        return sum(req.hive.cached.awaits is not None for req in self.replaying)

    def at(self, stamp: float) -> float:
        """Return the time after a message with this stamp.

        It never goes back: messages of several HTTP workers may overtake each other.
        """
        self.time = max(self.time, stamp)
        return self.time

    def summary(self, view: View = EVERYTHING) -> dict[str, Any]:
        """Return all counters; :meth:`View.of` then removes what the view must not show."""
        cache = self.cache.summary() if self.cache else None
        if cache is not None:
            cache |= {
                "replaying": len(self.replaying),
                "waiting": self.waiting,
                "joined": self.joined,
                "shared_prefix": self.shared_prefix,
            }
        known = self.agents.summary(view)
        if self.tree is not None:
            residency = self.tree.accounting.summary()
            for agent in known["agents"]:
                agent |= residency.get(agent["name"], NOT_RESIDENT)
        tree = self.tree.summary() if self.tree is not None else None
        record = self.record.summary() if self.record is not None else None
        return {
            "logits_cache": cache,
            "radix_cache": tree,
            "scheduler": self.steps.summary(),
            "hints": dict(self.hints),
            "traffic_record": record,
            **known,
        }
