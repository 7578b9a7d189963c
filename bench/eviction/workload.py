"""Synthetic traffic, token by token: agents that repair RTL, agents that do harm, and chats without agents.

Token ids are random: only which prefixes are equal matters to a cache. The lengths and the order of calls of the RTL
programs are those of the paper's workload.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bench.traces.trace import Event, Request, Tokens, Trace

VOCABULARY = 151_936
SYSTEM_TOKENS = {"Decision": 1100, "Patcher": 1300, "Viewer": 800, "Summary": 450, "Searcher": 600}
"""Length of each RTL agent's system prompt."""
SPAMMER = "Spammer"
"""The agent that harms the others, where there is one."""


class Call(NamedTuple):
    """One call of the model."""

    agent: str | None
    prompt: Tokens
    output: Tokens
    think_s: float
    """Seconds between the end of the previous call and this one."""


class Session(NamedTuple):
    """Calls one after another."""

    name: str | None
    calls: Sequence[Call]


class Slot(NamedTuple):
    """Sessions one after another, from a second on."""

    start_s: float
    sessions: Sequence[Session]


class Generator:
    """Random tokens and numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def tokens(self, count: int) -> Tokens:
        drawn = self.random.integers(1, VOCABULARY, size=count)
        return array("q", drawn.astype(np.int64).tobytes())

    def number(self, low: int, high: int) -> int:
        """An integer of ``low .. high``."""
        return int(self.random.integers(low, high + 1))

    def some(self, low: int, high: int) -> Tokens:
        """``low .. high`` token ids."""
        return self.tokens(self.number(low, high))

    def seconds(self, low: float, high: float) -> float:
        return float(self.random.uniform(low, high))


@dataclass(frozen=True)
class Rtl:
    """Programs that repair RTL.

    Each round Decision looks at one or two Viewers' reports, at times asks a Searcher, whose documents Summary
    condenses, and has Patcher change the file, whose tail is then another one.
    """

    slots: int = 1
    """Programs side by side."""
    sessions: int = 1
    """Programs of a slot, one after another."""
    rounds: int = 21
    compact: int | None = 12
    """Rounds after which the histories of Decision and Patcher are cut back to a summary; None: append only."""
    search_p: float = 0.4
    """How likely a round searches."""
    preamble: int = 0
    """Tokens that all system prompts begin with."""
    stagger_s: float = 8.0
    """Between the first programs of the slots."""

    def slots_of(self, draw: Generator) -> list[Slot]:
        preamble = draw.tokens(self.preamble)
        system = {agent: preamble + draw.tokens(length) for agent, length in SYSTEM_TOKENS.items()}
        return [
            Slot(
                slot * self.stagger_s,
                [Session(f"s{slot}.{index}", self._calls(draw, system)) for index in range(self.sessions)],
            )
            for slot in range(self.slots)
        ]

    def _calls(self, draw: Generator, system: dict[str, Tokens]) -> list[Call]:
        calls: list[Call] = []

        def call(agent: str, prompt: Tokens, output: tuple[int, int], think_s: tuple[float, float]) -> Tokens:
            answer = draw.some(*output)
            calls.append(Call(agent, prompt, answer, draw.seconds(*think_s)))
            return answer

        specification = draw.some(350, 500)
        head, tail = draw.some(600, 900), draw.some(200, 350)
        decision = system["Decision"] + specification + draw.tokens(150)
        patcher = system["Patcher"] + specification + head + tail
        since_compaction = 0
        for _ in range(self.rounds):
            if since_compaction == self.compact:
                decision = system["Decision"] + specification + draw.some(250, 350)
                patcher = system["Patcher"] + specification + head + tail
                since_compaction = 0
            since_compaction += 1
            decision = decision + draw.some(40, 90)
            decision += call("Decision", decision, (50, 110), (0.1, 0.4))
            for _ in range(draw.number(1, 2)):
                view = system["Viewer"] + specification + head + tail + draw.some(40, 80)
                decision = decision + call("Viewer", view, (80, 160), (0.3, 0.8))
            if draw.random.random() < self.search_p:
                documents = draw.some(2200, 3600)
                question = system["Searcher"] + draw.some(40, 80) + documents
                found = call("Searcher", question, (120, 220), (1.0, 3.0))
                summarised = call("Summary", system["Summary"] + documents + found, (100, 180), (0.1, 0.3))
                decision = decision + summarised
            decision = decision + call("Decision", decision + draw.tokens(30), (50, 110), (0.1, 0.4))
            patcher = patcher + draw.some(60, 120)
            patcher = patcher + call("Patcher", patcher, (150, 300), (0.2, 0.5))
            tail = draw.tokens(len(tail))
            decision = decision + draw.some(60, 140)
            # Here the program waits for a simulation.
            decision = decision + call("Decision", decision, (40, 80), (2.0, 6.0))
        return calls


@dataclass(frozen=True)
class Flood:
    """RTL programs, and an agent that never asks the same twice."""

    programs: Rtl
    calls: int

    def slots_of(self, draw: Generator) -> list[Slot]:
        slots = self.programs.slots_of(draw)
        spam = [Call(SPAMMER, draw.some(300, 600), draw.tokens(20), think_s=0.15) for _ in range(self.calls)]
        return [*slots, Slot(len(slots) * self.programs.stagger_s, [Session("spam", spam)])]


@dataclass(frozen=True)
class Inflating:
    """RTL programs, and an agent that inflates its score.

    It calls often, and half of each prompt is found in the cache, but the other half is never asked for again.
    """

    programs: Rtl
    calls: int
    half: int = 1500

    def slots_of(self, draw: Generator) -> list[Slot]:
        slots = self.programs.slots_of(draw)
        same = draw.tokens(self.half)
        calls = [
            Call(SPAMMER, same + draw.tokens(self.half), draw.tokens(20), think_s=0.05)
            for _ in range(self.calls)
        ]
        return [*slots, Slot(len(slots) * self.programs.stagger_s, [Session("inflating", calls)])]


@dataclass(frozen=True)
class Chat:
    """Chats of anonymous users. Sessions come as a Poisson process; lengths are log-normal."""

    sessions: int = 150
    between_s: float = 4.0
    """Mean seconds between the starts of sessions."""
    turns: float = 5.0
    """Mean number of turns, at least one; geometric."""
    think_s: float = 12.0
    """Mean seconds of reading and typing; exponential."""
    system_prompts: tuple[int, ...] = (1200, 500, 200)
    """Lengths of the shared system prompts, the most popular one first."""
    with_system_p: float = 0.7
    """How likely a session has one."""
    question: tuple[float, float] = field(default=(60.0, 0.9))
    """Median length and log's standard deviation."""
    answer: tuple[float, float] = field(default=(180.0, 0.6))
    longest: int = 2000
    """Of a question or an answer."""

    def slots_of(self, draw: Generator) -> list[Slot]:
        """The traffic, a slot for each session."""
        random = draw.random
        system = [draw.tokens(length) for length in self.system_prompts]
        popularity = 1 / np.arange(1, len(system) + 1)
        popularity /= popularity.sum()
        starts = np.cumsum(random.exponential(self.between_s, self.sessions))
        slots: list[Slot] = []
        for start_s in starts.tolist():
            shared = random.random() < self.with_system_p
            history = system[random.choice(len(system), p=popularity)] if shared else array("q")
            calls: list[Call] = []
            for turn in range(int(random.geometric(1 / self.turns))):
                history = history + draw.tokens(self._length(draw, self.question))
                answer = draw.tokens(self._length(draw, self.answer))
                think_s = float(random.exponential(self.think_s)) if turn else 0.0
                calls.append(Call(None, history, answer, think_s))
                history = history + answer
            slots.append(Slot(start_s, [Session(None, calls)]))
        return slots

    def _length(self, draw: Generator, spread: tuple[float, float]) -> int:
        median, sigma = spread
        return min(self.longest, 1 + int(draw.random.lognormal(np.log(median), sigma)))


Traffic = Rtl | Flood | Inflating | Chat


_BETWEEN_SESSIONS_S = 3.0
_OVERHEAD_S, _PREFILL_S, _DECODE_S = 0.1, 4e-5, 0.012
"""A request takes so many seconds, so many per prompt token, and so many per output token."""


def traced(slots: Sequence[Slot]) -> Trace:
    """The order of events of some traffic.

    Requests take as long as they would without a cache, so the order is the same whatever a cache does.
    """
    requests: list[Request] = []
    events: list[Event] = []
    times: list[tuple[float, float]] = []
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
            times.append((now, now + after))
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
    return Trace(requests, events, times)


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
