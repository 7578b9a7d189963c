"""Collects a scheduler's live events; :mod:`sglang_patches.http.live_routes` polls and streams them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hive.server.agents.registry import AgentRegistry
from hive.server.events import collect
from hive.server.events.event import AnyEvent, Requests, Scores
from hive.server.events.sessions import SessionTracker
from hive.server.logits_cache.cache import LogitsCache

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

    from sglang_patches.cache.radix_cache import AgentAware

logger = logging.getLogger(__name__)


class Observed(Protocol):
    """The part of a scheduler's state that events report."""

    agents: AgentRegistry
    tree: AgentAware | None
    cache: LogitsCache | None
    replaying: list[Req]

    @property
    def waiting(self) -> int: ...


class LiveEvents:
    """Makes snapshots of one scheduler."""

    def __init__(self) -> None:
        self.sessions = SessionTracker()
        self._scores: Scores | None = None
        self._failed = False

    def on_wire(self, scheduler: Scheduler) -> list[dict[str, Any]]:
        """Return a snapshot as JSON; empty from the first error on: a telemetry failure must not stop the server."""
        if self._failed:
            return []
        try:
            return [msgspec.to_builtins(event) for event in self.snapshot(scheduler)]
        except Exception:
            # An open page asks twice a second: one traceback says as much as thousands.
            self._failed = True
            logger.exception("Hive: live events failed and are now off; requests are still served")
            return []

    def snapshot(self, scheduler: Scheduler) -> list[AnyEvent]:
        """Return all events, as of now."""
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
