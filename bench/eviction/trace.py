"""What happens when: requests and the order in which they start and finish."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bench.eviction.workload import Session, Slot, Tokens


class Request(NamedTuple):
    """A request, whoever made it."""

    agent: str | None
    session: str | None
    prompt: Tokens
    output: Tokens

    @property
    def kept(self) -> Tokens:
        """What the cache may keep of it: the model never reads the last token that it writes."""
        return self.prompt + self.output[:-1]


Event = tuple[Literal["start"], int] | tuple[Literal["finish"], int] | tuple[Literal["end"], str]
"""A request starts or finishes (its index), or a session ends (its name)."""


@dataclass(frozen=True)
class Trace:
    """Requests, and what happens to them in order."""

    requests: Sequence[Request]
    events: Sequence[Event]


_BETWEEN_SESSIONS_S = 3.0
_OVERHEAD_S, _PREFILL_S, _DECODE_S = 0.1, 4e-5, 0.012
"""A request takes so many seconds, so many per prompt token, and so many per output token."""


def traced(slots: Sequence[Slot]) -> Trace:
    """The order of events of some traffic.

    Requests take as long as they would without a cache, so the order is the same whatever a cache does.
    """
    requests: list[Request] = []
    events: list[Event] = []
    clock: list[tuple[float, int, _Program]] = []
    for number, slot in enumerate(slots):
        heapq.heappush(clock, (slot.start_s, number, _Program(slot.sessions)))
    while clock:
        now, number, program = heapq.heappop(clock)
        session = program.session
        call = session.calls[program.call]
        if program.running is None:
            program.running = len(requests)
            requests.append(Request(call.agent, session.name, call.prompt, call.output))
            events.append(("start", program.running))
            after = _OVERHEAD_S + _PREFILL_S * len(call.prompt) + _DECODE_S * len(call.output)
        else:
            events.append(("finish", program.running))
            program.running = None
            program.call += 1
            if program.call < len(session.calls):
                after = session.calls[program.call].think_s
            else:
                if session.name is not None:
                    events.append(("end", session.name))
                program.call = 0
                program.index += 1
                if program.index == len(program.sessions):
                    continue
                after = _BETWEEN_SESSIONS_S
        heapq.heappush(clock, (now + after, number, program))
    return Trace(requests, events)


class _Program:
    """Where a slot has got to."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = sessions
        self.index = 0
        self.call = 0
        self.running: int | None = None
        """The request that has not finished."""

    @property
    def session(self) -> Session:
        return self.sessions[self.index]
