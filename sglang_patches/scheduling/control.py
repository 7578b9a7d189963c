"""Handles control messages in a scheduler."""

from __future__ import annotations

from typing import Any

from hive.server.agents.registry import OTHER
from hive.server.agents.tenant import EVERYTHING, View, qualified
from hive.server.integrity import IntegrityError
from sglang_patches.scheduling.hints import hinted
from sglang_patches.scheduling.state import SchedulerState


def handle(state: SchedulerState, operation: str, body: dict[str, Any]) -> dict[str, Any]:
    """Handle one control message; :mod:`sglang_patches.hooks.http_server` has already checked its body.

    ``tenant`` owns the agent or session.  If ``everything`` is false, only this tenant's statistics are returned.
    """
    tenant: str | None = body.get("tenant")
    if operation == "register":
        session = qualified(tenant, body["session"]) if "session" in body else None
        state.agents.register(qualified(tenant, body["name"]), body.get("description", ""), session)
        return {}
    if operation == "drop_messages":
        return {"dropped": state.kv.drop(tenant, body["messages"]) if state.kv is not None else 0}
    if operation == "end_session":
        session = qualified(tenant, body["session"])
        if state.tree is not None:
            state.tree.end_session(session)
        state.live.sessions.end(session)
        state.branches.end_session(session)
        requests = state.agents.end_session(session)
        if state.record is not None and requests is not None:
            state.record.end_session(session)
        return {"requests": requests}
    if operation == "hint":
        return {"known": hinted(state, body["hints"], body["now"])}
    view = EVERYTHING if body["everything"] else View(everything=False, tenant=tenant)
    summary = state.summary(view)
    if operation == "agents":
        agents = [agent for agent in summary["agents"] if view.shows(agent["name"])]
        for agent in agents:
            agent["score_history"] = state.agents.window.history_of(agent["name"])
        summary["agents"] = agents
    return view.of(summary, OTHER)


def problems(state: SchedulerState, idle: bool) -> list[str]:
    """Return errors in the caches' accounting and, if the scheduler is idle, what requests failed to release."""
    found = []
    for part in (state.cache, state.tree):
        try:
            if part is not None:
                part.check_integrity()
        except IntegrityError as error:
            found.append(f"{type(part).__name__}: {error}")
    if idle:
        if state.drawing:
            found.append(
                f"{len(state.drawing)} distinct samples are still being drawn, although the scheduler is idle"
            )
        if state.cache is not None and len(state.cache.in_flight):
            found.append(
                f"{len(state.cache.in_flight)} rows are still being computed, although the scheduler is idle"
            )
    return found
