"""The tracker of sessions: what it counts, and that it stays small whatever clients call themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgspec", reason="needs the server extra: uv pip install 'hive[server]'")

from hive.server.events.sessions import MAX_AGENTS, MAX_SESSIONS, MAX_STATES, SHOWN_SESSIONS, SessionTracker


def test_a_session_from_its_first_request_to_its_end() -> None:
    now = 1000.0
    tracker = SessionTracker(clock=lambda: now)
    tracker.arrived("s", "writer", "0")
    now = 1002.0
    tracker.arrived("s", "critic", "0.1")
    tracker.arrived("s", "critic", "0.1")
    tracker.left("s", generated=5, replayed=2)
    (line,) = tracker.event().sessions
    assert (line.name, line.agents, line.states, line.state) == ("s", ["writer", "critic"], 2, "0.1")
    assert (line.running, line.requests, line.tokens_generated, line.tokens_replayed) == (2, 3, 5, 2)
    assert (line.began, line.last_active) == (1000.0, 1002.0)
    tracker.end("s")
    tracker.left("s", generated=5, replayed=2)
    tracker.end("never seen")
    assert tracker.event().sessions == []
    assert tracker.event().ended == 1


def test_requests_without_a_session_are_on_no_board() -> None:
    tracker = SessionTracker()
    tracker.arrived(None, "a", "0")
    tracker.left(None, generated=1, replayed=1)
    assert tracker.event().sessions == []


def test_names_are_bounded() -> None:
    tracker = SessionTracker(clock=lambda: 0.0)
    for number in range(MAX_SESSIONS + 10):
        tracker.arrived(f"s{number}", "a", None)
    event = tracker.event()
    assert [line.name for line in event.sessions][:2] == [f"s{MAX_SESSIONS + 9}", f"s{MAX_SESSIONS + 8}"]
    assert len(event.sessions) == SHOWN_SESSIONS
    assert event.omitted == MAX_SESSIONS - SHOWN_SESSIONS
    for number in range(MAX_STATES + 50):
        tracker.arrived("big", f"agent{number}", f"state{number}")
    line = tracker.event().sessions[0]
    assert len(line.agents) == MAX_AGENTS
    assert line.states == MAX_STATES


@given(st.lists(st.tuples(st.sampled_from(["arrived", "left", "end"]), st.sampled_from("abc"))))
def test_counts_agree_with_what_happened(steps: list[tuple[str, str]]) -> None:
    tracker = SessionTracker(clock=lambda: 0.0)
    running: dict[str, int] = {}
    for step, name in steps:
        match step:
            case "arrived":
                tracker.arrived(name, "x", "s")
                running[name] = running.get(name, 0) + 1
            case "left" if running.get(name):
                tracker.left(name, generated=1, replayed=0)
                running[name] -= 1
            case "end":
                tracker.end(name)
                running.pop(name, None)
    assert {line.name: line.running for line in tracker.event().sessions} == running
