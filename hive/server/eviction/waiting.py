"""The worth of KV that only one dialogue used, while the dialogue waits for its next request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hive.server.eviction.dialogues import Dialogue
from hive.server.eviction.hints import Hint
from hive.server.eviction.node import NodeRecord
from hive.server.eviction.returns import Returns

Array = NDArray[np.float64]

_PLACES = 1 << 16
"""Dialogues that are told apart: the KV of one that began so many dialogues ago is ranked as that of a later one."""
_TURNS = 1 << 6
"""Turns that are told apart, so that the class of a node is static while the turns of its dialogue go on."""
FIRST_CLASS = 1 << 24
"""The lowest class of a node with a dialogue; hit density has lower ones (4097 agents of 8 classes)."""

_OLD, _NEW, _OFF_PATH = 0, 1, 2
_PRIOR: Array = np.array([0.95, 0.9, 0.05])
"""Parts of KV that next requests use: that was used before, that was added last, and off the path."""
_EVIDENCE = 4096.0
"""Tokens that weigh as much as the prior."""
_FADE = 0.98
"""Weight of the evidence that is left after each turn of an agent."""
DISCARDED = -1.0
"""Worth of KV that its client does not need any more: below everything but the dead."""
RETAINED = 1e6
"""Added to the worth of KV that a client wants to keep."""
_PRIORITY_DOUBLING = 10.0
_SPAN = 256
"""Admissions over which their rate is measured."""


class Waiting:
    """State of the dialogues, in arrays by dialogue, so that the worth of ten thousand leaves is a few look-ups."""

    def __init__(self) -> None:
        self._returns = Returns()
        self._turn = np.zeros(_PLACES, np.int32)
        self._since: Array = np.zeros(_PLACES)
        self._row = np.zeros(_PLACES, np.int32)
        self._agent = np.zeros(_PLACES, np.int32)
        self._factor: Array = np.ones(_PLACES)
        self._retained: Array = np.zeros(_PLACES)
        self._discarded = np.zeros(_PLACES, np.bool_)
        self._used: Array = np.zeros((1, 3))
        self._offered: Array = np.zeros((1, 3))
        self._seconds = 1.0
        """Seconds between two admissions."""
        self._began: tuple[float, int] | None = None

    def class_of(self, node: NodeRecord) -> int:
        """Return (dialogue, turn, new) as one number."""
        dialogue = node.dialogue
        assert dialogue is not None
        place = dialogue.number % _PLACES
        return FIRST_CLASS + ((place * _TURNS + node.turn % _TURNS) << 1 | (node.hits == 0))

    def continued(
        self, dialogue: Dialogue, agent: int, now: float, clock: int, matched: int, old: int
    ) -> None:
        """Learn from a dialogue's next request (see :meth:`EvictionPolicy.continued`)."""
        self._measure(now, clock)
        if dialogue.idle:
            self._returns.returned(dialogue, now - dialogue.since, clock)
        if dialogue.turn and not dialogue.trimmed:
            self._learn(dialogue, agent, matched, old)
        place = dialogue.number % _PLACES
        self._turn[place] = (dialogue.turn + 1) % _TURNS
        self._since[place] = now
        self._agent[place] = agent
        self._factor[place] = 1.0
        self._retained[place] = 0.0
        self._discarded[place] = False
        self._row[place] = self._returns.row(dialogue, agent)

    def departed(self, dialogue: Dialogue, agent: int, clock: int) -> None:
        """Note that a dialogue waits for its next request."""
        place = dialogue.number % _PLACES
        self._since[place] = dialogue.since
        self._row[place] = self._returns.waits(dialogue, agent, clock)

    def hinted(self, dialogue: Dialogue, agent: int, hint: Hint, now: float) -> None:
        """Note what a client says about a dialogue."""
        place = dialogue.number % _PLACES
        self._row[place] = self._returns.row(dialogue, agent)
        self._factor[place] = 2.0 ** (hint.priority / _PRIORITY_DOUBLING)
        self._discarded[place] = hint.discard or hint.event == "end"
        if hint.retain is not None:
            self._retained[place] = now + hint.retain

    def lost(self, dialogue: Dialogue, now: float, clock: int) -> None:
        """Note that the return of a dialogue may not be seen."""
        self._returns.lost(dialogue, now, clock)

    def forget(self, agent: int) -> None:
        """Drop what is known of one agent."""
        if agent < len(self._used):
            self._used[agent] = self._offered[agent] = 0.0
        self._returns.forget(agent)

    def worth(self, classes: NDArray[np.int32], now: float, clock: int) -> Array:
        """Return the worth of nodes, in hits per token and admission, [n]."""
        codes = classes - FIRST_CLASS
        new = codes & 1
        turns = (codes >> 1) % _TURNS
        places = codes // (2 * _TURNS)
        worth = self._returns.values(
            self._row[places], np.maximum(now - self._since[places], 0.0), now, clock
        )
        kinds = np.where(self._turn[places] == turns, new, _OFF_PATH)
        worth *= self._parts()[self._agent[places], kinds] * self._factor[places] * self._seconds
        worth += RETAINED * (self._retained[places] > now)
        worth[self._discarded[places]] = DISCARDED
        return worth

    def _learn(self, dialogue: Dialogue, agent: int, matched: int, old: int) -> None:
        if agent >= len(self._used):
            more = np.zeros((max(agent + 1, 2 * len(self._used)) - len(self._used), 3))
            self._used = np.concatenate([self._used, more])
            self._offered = np.concatenate([self._offered, more])
        kept = min(matched, dialogue.kept)
        added = min(matched - kept, dialogue.added)
        left = dialogue.kept + dialogue.added - kept - added
        self._used[agent] = self._used[agent] * _FADE + (kept, added, old)
        self._offered[agent] = self._offered[agent] * _FADE + (dialogue.kept, dialogue.added, max(left, old))

    def _parts(self) -> Array:
        """By agent, the parts of KV that next requests use; an agent without evidence has those of all."""
        used, offered = self._used.sum(axis=0), self._offered.sum(axis=0)
        everyone = (used + _EVIDENCE * _PRIOR) / (offered + _EVIDENCE)
        parts = (self._used + _EVIDENCE * everyone) / (self._offered + _EVIDENCE)
        missing = int(self._agent.max()) + 1 - len(parts)
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
