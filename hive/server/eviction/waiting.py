"""The worth of KV that only one dialogue used, while the dialogue waits for its next request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from hive.server.eviction.dialogues import HIT_BUCKETS, Dialogue
from hive.server.eviction.hints import Hint
from hive.server.eviction.returns import Returns

Array = NDArray[np.float64]
Density = Callable[[NDArray[np.int32], NDArray[np.int32]], Array]
"""Computes the hit density of KV by agent and hit bucket, [n]."""

_PLACES = 1 << 16
"""Dialogues that are told apart: the KV of one that began so many dialogues ago is ranked as that of a later one."""
_TURNS = 1 << 6
"""Turns that are told apart, so that the class of a node is static while the turns of its dialogue go on."""
FIRST_CLASS = 1 << 24
"""The lowest class of a node with a dialogue; hit density has lower ones (4097 agents of 8 classes)."""

_OFF_PATH = HIT_BUCKETS
_PRIOR: Array = np.array([0.9, 0.95, 0.95, 0.95, 0.05])
"""Parts of KV that next requests use: on the dialogue's path by hit bucket, and off the path."""
_EVIDENCE = 512.0
"""Tokens that weigh as much as the prior."""
_FADE = 0.98
"""Weight of the evidence that is left after each turn of an agent."""
DISCARDED = -1.0
"""Worth of KV that its client does not need any more: below everything but the dead."""
RETAINED = 1e6
"""Added to the worth of KV that a client wants to keep."""
_WEIGHT, _WEIGHT_OF_HINTED = 0.5, 0.7
"""Of the estimate by time to return, beside that by hit density; the second one if the client says when it returns."""
_PRIORITY_DOUBLING = 10.0
_SPAN = 256
"""Admissions over which their rate is measured."""


class Waiting:
    """State of the dialogues, in arrays by dialogue, so that the worth of ten thousand leaves is a few look-ups."""

    def __init__(self) -> None:
        self._returns = Returns()
        self._number = np.full(_PLACES, -1, np.int64)
        """The dialogue whose state is in a place: the last one that continued there."""
        self._turn = np.zeros(_PLACES, np.int32)
        self._since: Array = np.zeros(_PLACES)
        self._row = np.zeros(_PLACES, np.int32)
        self._usual = np.zeros(_PLACES, np.int32)
        """Rows of all dialogues of the agent together."""
        self._agent = np.zeros(_PLACES, np.int32)
        self._named = np.zeros(_PLACES, np.bool_)
        self._factor: Array = np.ones(_PLACES)
        self._hinted = np.zeros(_PLACES, np.bool_)
        self._retained = np.zeros(_PLACES, np.bool_)
        self._discarded = np.zeros(_PLACES, np.bool_)
        self._used: Array = np.zeros((1, HIT_BUCKETS + 1))
        self._offered: Array = np.zeros((1, HIT_BUCKETS + 1))
        self._parts: Array | None = None
        """By agent, the parts of KV that next requests use; None if they have to be computed again."""
        self._agents = 1
        """One more than the highest number of an agent."""
        self._seconds = 1.0
        """Seconds between two admissions."""
        self._began: tuple[float, int] | None = None

    def class_of(self, dialogue: Dialogue, turn: int, hits: int) -> int:
        """Return (dialogue, turn, hit bucket) as one number."""
        place = dialogue.number % _PLACES
        return FIRST_CLASS + (place * _TURNS + turn % _TURNS) * HIT_BUCKETS + hits

    def continued(
        self, dialogue: Dialogue, agent: int, now: float, clock: int, matched: Sequence[int], old: int
    ) -> None:
        """Learn from a dialogue's next request (see :meth:`EvictionPolicy.continued`)."""
        self._measure(now, clock)
        if dialogue.idle:
            self._returns.returned(dialogue, now - dialogue.since, clock)
        if dialogue.turn:
            self._learn(dialogue, agent, matched, old)
        place = dialogue.number % _PLACES
        self._number[place] = dialogue.number
        self._turn[place] = (dialogue.turn + 1) % _TURNS
        self._since[place] = now
        self._agent[place] = agent
        if agent >= self._agents:
            self._agents, self._parts = agent + 1, None
        self._named[place] = dialogue.named
        self._usual[place] = self._returns.usual(agent)
        self._factor[place] = 1.0
        self._hinted[place] = False
        self._discarded[place] = False
        self._row[place] = self._returns.row(dialogue, agent)

    def departed(self, dialogue: Dialogue, agent: int, clock: int) -> None:
        """Note that a dialogue waits for its next request."""
        row = self._returns.waits(dialogue, agent, clock)
        if (place := self._place(dialogue)) is not None:
            self._since[place] = dialogue.since
            self._row[place] = row

    def hinted(self, dialogue: Dialogue, agent: int, hint: Hint) -> None:
        """Note what a client says about a dialogue."""
        place = self._place(dialogue)
        if place is None:
            return
        self._row[place] = self._returns.row(dialogue, agent)
        self._hinted[place] = dialogue.expected is not None
        if hint.priority is not None:
            self._factor[place] = 2.0 ** (hint.priority / _PRIORITY_DOUBLING)
        if hint.event is not None or hint.discard is not None:
            self._discarded[place] = bool(hint.discard) or hint.event == "end"
        if self._discarded[place]:
            self.ended(dialogue)

    def retained(self, dialogues: Collection[Dialogue]) -> None:
        """Keep the KV of these dialogues, and of no others."""
        self._retained[:] = False
        for dialogue in dialogues:
            if (place := self._place(dialogue)) is not None:
                self._retained[place] = True

    def ended(self, dialogue: Dialogue) -> None:
        """Note that a dialogue has no next request."""
        self._returns.ended(dialogue)

    def lost(self, dialogue: Dialogue, now: float, clock: int) -> None:
        """Note that the return of a dialogue may not be seen."""
        self._returns.lost(dialogue, now, clock)

    def forget(self, agent: int) -> None:
        """Drop what is known of one agent."""
        if agent < len(self._used):
            self._used[agent] = self._offered[agent] = 0.0
            self._parts = None
        self._returns.forget(agent)

    def worth(self, classes: NDArray[np.int32], now: float, clock: int, density: Density) -> Array:
        """Return the worth of nodes, in hits per token and admission, [n].

        Two estimates are combined by a geometric mean: the hit density of the node's class, and the value of waiting
        times the part of the KV that next requests use.  Anonymous dialogues are a mixture, for which only ratios are
        robust.  Their worth is the hit density, times how much more waiting for this dialogue is worth than for others
        that have been idle for as long.
        """
        codes = classes - FIRST_CLASS
        hits = codes % HIT_BUCKETS
        turns = codes // HIT_BUCKETS % _TURNS
        places = codes // (HIT_BUCKETS * _TURNS)
        idle = np.maximum(now - self._since[places], 0.0)
        agents = self._agent[places]
        value = self._returns.values(self._row[places], idle, now, clock)
        usual = self._returns.values(self._usual[places], idle, now, clock)
        if self._parts is None:
            self._parts = self._parts_of_agents()
        parts = self._parts
        on_path = self._turn[places] == turns
        part = parts[agents, np.where(on_path, hits, _OFF_PATH)]
        by_class = density(agents, hits)
        by_return = part * value * self._seconds
        weight = np.where(self._hinted[places], _WEIGHT_OF_HINTED, _WEIGHT)
        combined = (by_class * part / parts[agents, hits]) ** (1.0 - weight) * by_return**weight
        worth: Array = np.where(self._named[places], combined, by_class * (value / usual))
        worth *= self._factor[places]
        worth += RETAINED * (self._retained[places] & on_path)
        worth[self._discarded[places]] = DISCARDED
        return worth

    def _place(self, dialogue: Dialogue) -> int | None:
        """Return where the state of a dialogue is; None if a later one has taken its place."""
        place = dialogue.number % _PLACES
        return place if self._number[place] == dialogue.number else None

    def _learn(self, dialogue: Dialogue, agent: int, matched: Sequence[int], old: int) -> None:
        if agent >= len(self._used):
            more = np.zeros((max(agent + 1, 2 * len(self._used)) - len(self._used), HIT_BUCKETS + 1))
            self._used = np.concatenate([self._used, more])
            self._offered = np.concatenate([self._offered, more])
        self._parts = None
        left = sum(dialogue.path) - sum(matched)
        self._used[agent] = self._used[agent] * _FADE + [*matched, old]
        self._offered[agent] = self._offered[agent] * _FADE + [*dialogue.path, max(left, old)]

    def _parts_of_agents(self) -> Array:
        # An agent without evidence has the parts of all.
        used, offered = self._used.sum(axis=0), self._offered.sum(axis=0)
        everyone = (used + _EVIDENCE * _PRIOR) / (offered + _EVIDENCE)
        parts: Array = (self._used + _EVIDENCE * everyone) / (self._offered + _EVIDENCE)
        missing = self._agents - len(parts)
        if missing > 0:
            parts = np.concatenate([parts, np.tile(everyone, (missing, 1))])
        return parts

    def _measure(self, now: float, clock: int) -> None:
        """Measure the rate of admissions."""
        if self._began is None:
            self._began = now, clock
        began, first = self._began
        if clock - first >= _SPAN or self._seconds == 1.0:
            if now > began:
                self._seconds = (now - began) / (clock - first)
            if clock - first >= _SPAN:
                self._began = now, clock
