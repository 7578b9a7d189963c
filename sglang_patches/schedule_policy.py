"""Hooks on ``sglang.srt.managers.schedule_policy``: the order of the waiting queue, and what admission has promised.

``--hive-schedule contribution`` sorts after SGLang has put the waiting queue in its own order, which stays for requests
of one agent's score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hive.server.agents.registry import AgentRegistry
from sglang_patches.kv_state import state_of

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


@dataclass(frozen=True, slots=True)
class ContributionOrder:
    """Attached to the scheduler's policy, as ``SchedulePolicy.hive_order``."""

    agents: AgentRegistry
    max_passes: int

    def key(self, req: Req) -> tuple[int, float, int]:
        """Sort key of a waiting request."""
        attached = getattr(req, "hive", None)
        if attached is None:  # a health check
            return (0, 0.0, 0)
        return self.agents.place(attached.agent, attached.number, self.max_passes)


def before_add_one_req(self: Any, req: Req, *_args: Any, **_kwargs: Any) -> None:
    """Tell a cache with segments what others were promised: what it takes for this request must leave that much."""
    if state_of(req) is not None:
        self.tree_cache.promised = self.rem_total_token_offset


def after_calc_priority(result: Any, self: Any, waiting_queue: list[Req], *_args: Any, **_kwargs: Any) -> Any:
    """Sort the queue in place, as SGLang does."""
    order: ContributionOrder | None = self.hive_order
    if order is not None:
        waiting_queue.sort(key=order.key)
    return result
