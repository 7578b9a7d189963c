"""Rounds of repair: what a session does until its next patch is made."""

from __future__ import annotations

from bench.traces.trace import Event, Trace

ROUND_AGENT = "Patcher"
"""When it has done its part, a round of a session is over."""


def rounds_of(trace: Trace) -> list[int]:
    """Of each request, the round of its session, from 1."""
    rounds: list[int] = []
    current: dict[str | None, int] = {}
    latest: dict[str | None, str | None] = {}
    for request in trace.requests:
        session, agent = request.session, request.agent
        if latest.get(session) == ROUND_AGENT != agent:
            current[session] = current.get(session, 1) + 1
        latest[session] = agent
        rounds.append(current.get(session, 1))
    return rounds


def first_rounds(trace: Trace, count: int) -> Trace:
    """The same sessions, each of them over after so many rounds."""
    kept = [number for number, of in enumerate(rounds_of(trace)) if of <= count]
    place = {number: at for at, number in enumerate(kept)}
    events: list[Event] = []
    for event in trace.events:
        if event[0] == "end":
            events.append(event)
        elif event[1] in place:
            number = place[event[1]]
            events.append(("start", number) if event[0] == "start" else ("finish", number))
    return Trace([trace.requests[number] for number in kept], events)
