"""What the scheduler tells the radix cache about the next use of a session's KV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hive.server.agents.tenant import qualified
from hive.server.eviction.hints import Event, Hint
from sglang_patches.requests.request_state import RequestState, came_to_natural_end, tag_of
from sglang_patches.scheduling.state import SchedulerState

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


def departed(state: SchedulerState, req: Req, *, ended: bool) -> None:
    """Tell the cache that a request has ended, and what its client said would follow."""
    if state.tree is None:
        return
    attached: RequestState = req.hive
    event: Event | None = None
    if ended and attached.answers_person and came_to_natural_end(req):
        event = "human"
    state.tree.departed(req, state.time, event)
    # A request that was aborted has not reached the point that its hints are about.
    if ended and attached.session is not None and (hint := Hint.of(tag_of(req))) is not None:
        state.tree.hint(attached.session, hint, state.time)


def hinted(state: SchedulerState, hints: Iterable[Mapping[str, Any]], now: float) -> list[bool]:
    """Pass on hints about sessions, flat tags, and return whether each session is known."""
    at = state.at(now)
    known = []
    for tag in hints:
        session = qualified(tag.get("tenant"), tag["session"])
        known.append(state.agents.has_session(session))
        hint = Hint.of(tag)
        if state.tree is not None and hint is not None and known[-1]:
            state.tree.hint(session, hint, at)
    return known
