"""The order of the waiting queue under ``--hive-schedule contribution``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hive.server.agents.registry import AgentRegistry

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


@dataclass(frozen=True, slots=True)
class ContributionOrder:
    """Attached to the scheduler's policy, as ``SchedulePolicy.hive_order``."""

    agents: AgentRegistry
    max_passes: int

    def key(self, req: Req) -> tuple[int, float, int]:
        """Return the sort key of a waiting request."""
        attached = getattr(req, "hive", None)
        if attached is None:  # a health check
            return (0, 0.0, 0)
        return self.agents.place(attached.agent, attached.number, self.max_passes)
