"""Hooks on ``sglang.srt.managers.schedule_policy``: the order of the waiting queue, and what admission has promised.

``--hive-schedule contribution`` sorts after SGLang has put the waiting queue in its own order, which stays for requests
of one agent's score.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_patches.requests.kv_state import state_of
from sglang_patches.scheduling.contribution_order import ContributionOrder

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


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
