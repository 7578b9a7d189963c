"""What happens when: requests and the order in which they start and finish."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Tokens: TypeAlias = "array[int]"
"""Token ids, type code ``q`` as in SGLang."""
HOT_AGENTS = ("Patcher", "Viewer", "Decision")
"""The agents that programs call again and again, with prompts that grow."""


class Request(NamedTuple):
    """A request of an agent, or an anonymous one."""

    agent: str | None
    session: str | None
    prompt: Tokens
    output: Tokens

    @property
    def kept(self) -> Tokens:
        """What the cache may keep of it: the model never reads the last token that it writes."""
        return self.prompt + self.output[:-1] if len(self.output) > 1 else self.prompt


Event = tuple[Literal["start"], int] | tuple[Literal["finish"], int] | tuple[Literal["end"], str]
"""A request starts or finishes (its index), or a session ends (its name)."""


@dataclass(frozen=True)
class Trace:
    """Requests, and what happens to them in order."""

    requests: Sequence[Request]
    events: Sequence[Event]
    times: Sequence[tuple[float, float]] | None = None
    """When each request arrived and finished, in seconds, if that is known."""


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
