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
    attached: RequestState = req.hive
    event: Event | None = None
    if ended and attached.answers_person and came_to_natural_end(req):
        event = "human"
    leaf, attached.leaf = attached.leaf, None
    if state.tree is not None:
        state.tree.departed(req, state.time, event)
    # A request that was aborted has not reached the point that its hints are about.
    if not ended or attached.session is None:
        return
    tag = tag_of(req)
    if leaf is not None and "state" in tag:
        state.branches.add(attached.session, tag["state"], tag.get("sample", 0), leaf)
    _pass_on(state, attached.session, tag, state.time)


def hinted(state: SchedulerState, hints: Iterable[Mapping[str, Any]], now: float) -> list[bool]:
    """Pass on hints about sessions, flat tags, and return whether each session is known."""
    at = state.at(now)
    known = []
    for tag in hints:
        session = qualified(tag.get("tenant"), tag["session"])
        known.append(state.agents.has_session(session))
        if known[-1] and "state" in tag:
            _discard_answers(state, session, tag)
        elif known[-1]:
            _pass_on(state, session, tag, at)
    return known


def observed(state: SchedulerState, ends: Iterable[Mapping[str, Any]], now: float) -> None:
    """Tell the cache how chats ended that the HTTP process observed, by qualified names of their sessions."""
    at = state.at(now)
    for end in ends:
        session, event = end["session"], end["event"]
        if not state.agents.has_session(session):
            continue  # Its request was another data-parallel rank's.
        state.hints[event] += 1
        if state.tree is not None:
            state.tree.observed(session, event, at)


def _discard_answers(state: SchedulerState, session: str, tag: Mapping[str, Any]) -> None:
    """Discard answers that no branch continues."""
    state.hints["discard"] += 1
    for node in state.branches.take(session, tag["state"], tag.get("sample")):
        if state.tree is not None:
            state.tree.discard(node)


def _pass_on(state: SchedulerState, session: str, tag: Mapping[str, Any], now: float) -> None:
    """Count the hints in a flat tag, and tell the cache."""
    hint = Hint.of(tag)
    if hint is None:
        return
    if hint.event is not None:
        state.hints[hint.event] += 1
    state.hints.update(name for name in ("kv_priority", "retain", "discard") if tag.get(name))
    if state.tree is not None:
        state.tree.hint(session, hint, now)
