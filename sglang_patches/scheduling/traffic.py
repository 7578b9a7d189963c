"""Records the traffic of a scheduler (``--hive-record-traffic``)."""

from __future__ import annotations

import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from hive.server.flags.server_args import HiveServerArgs
from hive.server.traffic_record import Ended, TrafficRecord
from sglang_patches.requests.request_state import RequestState, tag_of
from sglang_patches.scheduling.state import SchedulerState

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler


def record_of(scheduler: Scheduler, args: HiveServerArgs) -> TrafficRecord | None:
    """Open the record of this scheduler; None if there is none, or another rank writes it."""
    if not args.record_traffic or not scheduler.metrics_reporter.is_stats_logging_rank:
        return None
    return TrafficRecord(Path(args.record_traffic))


def record(state: SchedulerState, req: Req) -> None:
    """Record a request that has ended."""
    if state.record is None:
        return
    attached: RequestState = req.hive
    tag = tag_of(req)
    state.record.add(
        Ended(
            arrived=attached.began,
            ended=time.monotonic(),
            agent=tag.get("agent"),
            session=attached.session,
            tenant=tag.get("tenant"),
            prompt=array("q", req.origin_input_ids),
            output=len(req.output_ids),
            stop=req.finished_reason.to_json()["type"] if req.finished_reason is not None else "abort",
        )
    )
