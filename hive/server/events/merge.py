"""Merges the snapshots of several data-parallel ranks into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hive.server.events.event import AgentLine, Agents, AnyEvent, Scores, SessionLine, Sessions


def merged(ranks: Iterable[Sequence[AnyEvent]]) -> list[AnyEvent]:
    """Merge the events of all ranks by kind.

    Counts are summed, and agents and sessions are joined by name.  Scores are relative to the agents of one rank, so
    an agent known to several ranks keeps the score of the first one.
    """
    kinds: dict[type, list[Any]] = {}
    for events in ranks:
        for event in events:
            kinds.setdefault(type(event), []).append(event)
    return [events[0] if len(events) == 1 else _join(events) for events in kinds.values()]


def _join(events: Sequence[Any]) -> Any:
    match events[0]:
        case Agents():
            lines = _by_name([line for event in events for line in event.agents], _add_agents)
            lines.sort(key=lambda line: (-line.requests, line.name))
            return Agents(lines, omitted=max(event.omitted for event in events))
        case Sessions():
            lines = _by_name([line for event in events for line in event.sessions], _add_sessions)
            lines.sort(key=lambda line: (-line.last_active, line.name))
            return Sessions(
                lines, max(event.omitted for event in events), max(event.ended for event in events)
            )
        case Scores():
            history = {name: scores for event in reversed(events) for name, scores in event.history.items()}
            return Scores(max(event.round for event in events), history)
        case _:
            return _add(events[0], *events[1:])


def _by_name(lines: Sequence[Any], add: Any) -> list[Any]:
    known: dict[str, Any] = {}
    for line in lines:
        known[line.name] = add(known[line.name], line) if line.name in known else line
    return list(known.values())


def _add_agents(left: AgentLine, right: AgentLine) -> AgentLine:
    both: AgentLine = _add(left, right)
    both.registered = left.registered or right.registered
    both.contribution = left.contribution or right.contribution
    return both


def _add_sessions(left: SessionLine, right: SessionLine) -> SessionLine:
    both: SessionLine = _add(left, right)
    both.agents = list(dict.fromkeys([*left.agents, *right.agents]))
    both.state = max(left, right, key=lambda line: line.last_active).state
    both.began, both.last_active = min(left.began, right.began), max(left.last_active, right.last_active)
    return both


def _add(first: Any, *others: Any) -> Any:
    """Return ``first`` with the sums of all integer fields."""
    sums = {
        name: value + sum(getattr(other, name) for other in others)
        for name, value in msgspec.structs.asdict(first).items()
        if type(value) is int
    }
    return msgspec.structs.replace(first, **sums)
