"""Publishes live events from the scheduler over ZeroMQ; :mod:`sglang_patches.http.live_routes` sends them to
browsers.

Each scheduler loop calls :func:`tick`, which usually only reads the clock.  Tensor-parallel ranks see the same
requests, so one rank of each group publishes.  Clocks and sockets never influence scheduling decisions.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from hive.server.agents.registry import AgentRegistry
from hive.server.events import collect
from hive.server.events.endpoint import OFF, of_rank
from hive.server.events.event import AnyEvent, Requests, Scores
from hive.server.events.publisher import EventPublisher
from hive.server.events.sessions import SessionBoard
from hive.server.flags.server_args import HiveServerArgs
from hive.server.logits_cache.cache import LogitsCache
from sglang_patches.contract.releases import current

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

    from sglang_patches.cache.radix_cache import AgentAware

logger = logging.getLogger(__name__)


class Observed(Protocol):
    """The part of a scheduler's state that is published."""

    agents: AgentRegistry
    tree: AgentAware | None
    cache: LogitsCache | None
    replaying: list[Req]

    @property
    def waiting(self) -> int: ...


class LiveEvents:
    """Publishes the events of one scheduler."""

    def __init__(self, publisher: EventPublisher) -> None:
        self._publisher: EventPublisher | None = publisher
        self.sessions = SessionBoard()
        self._scores: Scores | None = None

    def tick(self, scheduler: Scheduler) -> None:
        """Publish a snapshot if one is due and a client listens."""
        if self._publisher is None or not self._publisher.due():
            return
        try:
            self._publisher.publish(self._events(scheduler))
        except Exception:
            # A telemetry failure must not stop the server.
            logger.exception(
                "Hive: publishing live events failed, so they are now off; requests are still served"
            )
            self._publisher.close()
            self._publisher = None

    def _events(self, scheduler: Scheduler) -> list[AnyEvent]:
        state: Observed = scheduler.hive
        accounting = state.tree.accounting if state.tree is not None else None
        if self._scores is None or self._scores.round != state.agents.window.round:
            self._scores = collect.scores_event(state.agents)
        events: list[AnyEvent] = [
            collect.agents_event(state.agents, accounting),
            self._scores,
            Requests(
                running=_running(scheduler),
                queued=len(scheduler.waiting_queue),
                replaying=len(state.replaying),
                waiting=state.waiting,
            ),
            self.sessions.event(),
        ]
        if state.cache is not None:
            events.append(collect.logits_cache_event(state.cache))
        if state.tree is not None:
            events.append(collect.radix_cache_event(state.tree.summary()))
        return events


def _running(scheduler: Scheduler) -> int:
    """Count the requests of the decode batch, and those of the last batch, which have yet to join it."""
    batches = (scheduler.running_batch, scheduler.last_batch)
    return len(
        {id(req) for batch in batches if batch is not None for req in batch.reqs if not req.finished()}
    )


def live_events(scheduler: Scheduler, args: HiveServerArgs) -> LiveEvents | None:
    """Return the live events of a scheduler that publishes for its group; None for other ranks and if they are off.

    Raises:
        OSError: if the address is in use.
    """
    ranks = current().ranks(scheduler)
    if args.events_endpoint == OFF or ranks.pp_rank or ranks.attn_tp_rank or ranks.attn_cp_rank:
        return None
    # Data-parallel replicas and attention-DP ranks are numbered separately; only one kind is in use.
    rank = ranks.attn_dp_rank if ranks.attn_dp_size > 1 else ranks.dp_rank or 0
    return LiveEvents(EventPublisher(of_rank(args.events_endpoint, rank), rank))
