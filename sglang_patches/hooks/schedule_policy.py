"""Hooks on ``sglang.srt.managers.schedule_policy``: the order of the waiting queue, and slots promised by admission.

``--hive-schedule contribution`` sorts the queue after SGLang has put it in its own order, which remains for requests
with equal keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_patches.requests.kv_state import state_of
from sglang_patches.scheduling.contribution_order import ContributionOrder

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


def before_add_one_req(self: Any, req: Req, *_args: Any, **_kwargs: Any) -> None:
    """Tell a cache with segments how many slots other requests were promised: it must leave that many free."""
    if state_of(req) is not None:
        self.tree_cache.promised = self.rem_total_token_offset


def after_calc_priority(result: Any, self: Any, waiting_queue: list[Req], *_args: Any, **_kwargs: Any) -> Any:
    """Sort the queue in place, as SGLang does."""
    order: ContributionOrder | None = self.hive_order
    if order is not None:
        waiting_queue.sort(key=order.key)
    return result
