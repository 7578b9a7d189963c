"""When dialogues return: survival curves over idle time, learned online, and what clients say about it.

A class of dialogues is (agent, last event, rhythm).  For each class the predictor counts, by idle time, how often
dialogues returned and how often they had not returned yet.  That gives the probability of a return per second (the
hazard) at each idle time.  A class with little evidence is shrunk towards the same class over other agents, that one
towards other dialogues with the same last event, and so on.  No evidence counts twice, so the hazard of a class that
has all the evidence is that of all dialogues.

A client that says when its session returns may be wrong.  The predictor learns how wrong: the mean and the variance of
log(hinted / actual).  The hint is then evidence by Bayes' rule, on top of the survival curve of the class.

The value of waiting for a dialogue that has been idle for a seconds is the best ratio, over all times b > a, of
P(returns before b) to the expected seconds that its KV waits until the return or b (its Gittins index).
"""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from hive.server.eviction.dialogues import RHYTHMS, Dialogue
from hive.server.eviction.hints import EVENTS

Array = NDArray[np.float64]

BINS = 45
_BINS_PER_DOUBLING = 3
_EDGES: Array = np.concatenate([[0.0], 2.0 ** (np.arange(BINS - 1) / _BINS_PER_DOUBLING)])
"""Seconds at which the bins of idle time begin: 0, 1, 1.26, ... 2.1e4."""
_WIDTHS: Array = np.diff(np.append(_EDGES, _EDGES[-1] * 2.0 ** (1 / _BINS_PER_DOUBLING)))
_LOG_MIDDLES: Array = np.log1p(_EDGES + _WIDTHS / 2)
_EDGE_LIST: list[float] = _EDGES.tolist()
_PRIOR: Array = 0.3 / (1.0 + _EDGES)
"""Hazard without evidence: it falls with idle time, which is LRU."""

_EVENT_NUMBERS = {None: 0} | {event: number for number, event in enumerate(EVENTS, start=1)}
_EVENTS = len(_EVENT_NUMBERS)
_KINDS = _EVENTS * RHYTHMS
_ALL = _KINDS
"""The kind of all dialogues."""
_EVIDENCE = 0.3
"""Dialogues that were observed over a whole bin and weigh as much as the prior."""
_HALF_LIFE = 4096
"""Admissions after which the weight of evidence is halved, and after which a dialogue that has not returned is counted
as one that never will."""
_REFRESH = 32
"""Admissions between two estimates; more with many agents, fewer at the start."""
_AGENTS_PER_REFRESH = 16
_HINTS_PER_DOUBLING = 4
_LONGEST_HINT = 24 * _HINTS_PER_DOUBLING
_NEVER = 1e-6
"""Least probability that a dialogue never returns: the value of one that should have returned long ago falls."""
_LOWEST = 1e-12
_OUTLIERS = 0.02
"""Part of the hints that say nothing."""
_HINT_EVIDENCE = 8.0
_MOST_ROWS = 16384
"""Curves of single agents, at most."""


def bin_of(seconds: float) -> int:
    """Return the bin of an idle time."""
    return bisect_right(_EDGE_LIST, seconds) - 1


def bins_of(seconds: Array) -> NDArray[np.int64]:
    """Return the bins of idle times, [n]."""
    bins: NDArray[np.int64] = np.searchsorted(_EDGES, seconds, side="right") - 1
    return np.maximum(bins, 0)


class Returns:
    """Learns when dialogues return, and values waiting for them."""

    def __init__(self) -> None:
        self._returned: Array = np.zeros((1, _KINDS, BINS))
        self._lost: Array = np.zeros((1, _KINDS, BINS))
        self._weighed = 0
        self._refreshed: int | None = None
        self._version = 0
        self._pooled: Array = np.zeros((2, _KINDS + 1, BINS))
        """Returned and lost dialogues of all agents, by kind."""
        self._prior: Array = np.zeros((_KINDS + 1, BINS))
        """Hazards of kinds, from the evidence of other kinds."""
        self._agents: tuple[Array, Array] = (self._returned, self._lost)
        self._waiting: dict[int, tuple[int, int, float, int]] = {}
        """By dialogue: (agent, kind, idle since, clock then)."""
        self._rows: dict[tuple[int, int, int | None], int] = {}
        self._keys: list[tuple[int, int, int | None]] = []
        self._values: Array = np.zeros((64, BINS))
        self._versions = np.full(64, -1)
        self._errors = (0.0, 0.0, 0.0)
        """Of hints: their number, the sum of log(hinted / actual) and that of its squares."""

    def waits(self, dialogue: Dialogue, agent: int, clock: int) -> int:
        """Note that a dialogue has become idle; return the row of its values."""
        kind = _EVENT_NUMBERS[dialogue.event] * RHYTHMS + dialogue.rhythm
        self._waiting[dialogue.number] = (agent, kind, dialogue.since, clock)
        return self.row(dialogue, agent)

    def row(self, dialogue: Dialogue, agent: int) -> int:
        """Return the row of an idle dialogue's values, after a hint."""
        kind = _EVENT_NUMBERS[dialogue.event] * RHYTHMS + dialogue.rhythm
        waiting = self._waiting.get(dialogue.number)
        if waiting is not None:
            self._waiting[dialogue.number] = (agent, kind, *waiting[2:])
        expected = dialogue.expected
        hint = None
        if expected is not None:
            hint = min(_LONGEST_HINT, round(_HINTS_PER_DOUBLING * math.log2(1.0 + expected)))
        key = (agent if len(self._keys) < _MOST_ROWS else -1, kind, hint)
        return self._row_of(key)

    def _row_of(self, key: tuple[int, int, int | None]) -> int:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._keys)
            self._keys.append(key)
            if row == len(self._values):
                self._values = np.concatenate([self._values, np.zeros_like(self._values)])
                self._versions = np.concatenate([self._versions, np.full_like(self._versions, -1)])
        return row

    def returned(self, dialogue: Dialogue, gap: float, clock: int) -> None:
        """Learn from a dialogue that was idle for ``gap`` seconds."""
        waited = self._waiting.pop(dialogue.number, None)
        if waited is None:
            return
        agent, kind, _, _ = waited
        self._count(self._of_agent(agent)[0], agent, kind, gap, clock)
        if dialogue.expected is not None:
            error = math.log1p(dialogue.expected) - math.log1p(gap)
            count, total, squares = self._errors
            fade = 1.0 - 1.0 / _HALF_LIFE
            self._errors = (count * fade + 1.0, total * fade + error, squares * fade + error * error)

    def ended(self, dialogue: Dialogue) -> None:
        """Note that a dialogue has no next request: its end is no evidence about those that wait."""
        self._waiting.pop(dialogue.number, None)

    def lost(self, dialogue: Dialogue, now: float, clock: int) -> None:
        """Learn from a dialogue whose return can no longer be seen that it had not returned so far."""
        waited = self._waiting.pop(dialogue.number, None)
        if waited is not None:
            agent, kind, since, _ = waited
            self._count(self._of_agent(agent)[1], agent, kind, now - since, clock)

    def forget(self, agent: int) -> None:
        """Drop what is known of one agent."""
        if agent < len(self._returned):
            self._returned[agent] = self._lost[agent] = 0.0
        self._waiting = {number: waited for number, waited in self._waiting.items() if waited[0] != agent}
        self._refreshed = None

    def values(self, rows: NDArray[np.int32], idle: Array, now: float, clock: int) -> Array:
        """Return the values of waiting, in expected returns per second, [n].

        Args:
            rows: from :meth:`row`, [n].
            idle: seconds that the dialogues have been idle, [n].
            now: the time.
            clock: admissions so far.
        """
        self._refresh(now, clock)
        needed = np.unique(rows)
        stale = needed[self._versions[needed] != self._version]
        if len(stale):
            self._values[stale] = self._estimate([self._keys[row] for row in stale.tolist()])
            self._versions[stale] = self._version
        values: Array = self._values[rows, bins_of(idle)]
        return values

    def _of_agent(self, agent: int) -> tuple[Array, Array]:
        if agent >= len(self._returned):
            more = np.zeros((max(agent + 1, 2 * len(self._returned)) - len(self._returned), _KINDS, BINS))
            self._returned = np.concatenate([self._returned, more])
            self._lost = np.concatenate([self._lost, more])
        return self._returned, self._lost

    def _count(self, counts: Array, agent: int, kind: int, gap: float, clock: int) -> None:
        if clock - self._weighed > _HALF_LIFE:
            self._weigh(clock)
        counts[agent, kind, bin_of(max(gap, 0.0))] += 2.0 ** ((clock - self._weighed) / _HALF_LIFE)

    def _weigh(self, clock: int) -> None:
        decay = 0.5 ** ((clock - self._weighed) / _HALF_LIFE)
        self._weighed = clock
        self._returned *= decay
        self._lost *= decay

    def _refresh(self, now: float, clock: int) -> None:
        interval = min(_REFRESH * (1 + len(self._returned) // _AGENTS_PER_REFRESH), 1 + clock // 8)
        if self._refreshed is not None and clock - self._refreshed < interval:
            return
        self._refreshed = clock
        self._version += 1
        self._weigh(clock)
        for number, (agent, kind, since, clock_then) in list(self._waiting.items()):
            if clock - clock_then > _HALF_LIFE:
                del self._waiting[number]
                self._count(self._of_agent(agent)[1], agent, kind, now - since, clock)
        lost = self._lost.copy()
        if self._waiting:
            agents, kinds, begun, _ = (
                np.array(column) for column in zip(*self._waiting.values(), strict=True)
            )
            grown = max(int(agents.max()) + 1 - len(lost), 0)
            lost = np.concatenate([lost, np.zeros((grown, _KINDS, BINS))])
            np.add.at(lost, (agents, kinds, bins_of(np.maximum(now - begun, 0.0))), 1.0)
        self._agents = (self._returned, lost)
        by_kind = np.array([self._returned.sum(axis=0), lost.sum(axis=0)])
        kinds = by_kind.reshape(2, _EVENTS, RHYTHMS, BINS)
        events = kinds.sum(axis=2, keepdims=True)
        everyone = events.sum(axis=1, keepdims=True)
        prior = _hazard(events - kinds, _hazard(everyone - events, _PRIOR))
        self._pooled = np.concatenate([by_kind, everyone.reshape(2, 1, BINS)], axis=1)
        self._prior = np.concatenate([prior.reshape(_KINDS, BINS), _PRIOR[None]])

    def usual(self, agent: int) -> int:
        """Return the row of all of an agent's dialogues together."""
        return self._row_of((agent if len(self._keys) < _MOST_ROWS else -1, _ALL, None))

    def _estimate(self, keys: list[tuple[int, int, int | None]]) -> Array:
        """Return the values of waiting by bin, [rows, BINS]."""
        returned, lost = self._agents
        kinds = np.array([kind for _, kind, _ in keys])
        own = np.zeros((2, len(keys), BINS))
        for place, (agent, kind, _) in enumerate(keys):
            if 0 <= agent < len(returned):
                which = slice(None) if kind == _ALL else slice(kind, kind + 1)
                own[:, place] = returned[agent, which].sum(axis=0), lost[agent, which].sum(axis=0)
        hazard = _hazard(own, _hazard(self._pooled[:, kinds] - own, self._prior[kinds]))
        alive = np.exp(-np.cumsum(hazard * _WIDTHS, axis=-1))
        mass = -np.diff(alive, axis=-1, prepend=1.0)
        mass = np.concatenate([mass, alive[:, -1:] + _NEVER], axis=-1)
        hinted = [place for place, (_, _, hint) in enumerate(keys) if hint is not None]
        if hinted:
            log_hints = np.array([keys[place][2] for place in hinted], float) * (
                math.log(2.0) / _HINTS_PER_DOUBLING
            )
            mass[hinted] *= self._likelihood(log_hints)
        return _gittins(mass)

    def _likelihood(self, log_hints: Array) -> Array:
        """Return how likely hints are, given the bin in which the dialogue returns, or that it never does."""
        count, total, squares = self._errors
        weight = count + _HINT_EVIDENCE
        mean = total / weight
        variance = max((squares + _HINT_EVIDENCE) / weight - mean * mean, 0.01)
        errors = log_hints[:, None] - _LOG_MIDDLES - mean
        likelihood = (1.0 - _OUTLIERS) * np.exp(-0.5 * errors**2 / variance) + _OUTLIERS
        return np.concatenate([likelihood, np.full((len(log_hints), 1), _OUTLIERS)], axis=-1)


def _hazard(counts: Array, prior: Array) -> Array:
    """Return the probability of a return per second by bin (the last axis), shrunk towards ``prior``.

    ``counts`` are the dialogues that returned and those that had not, [2, ..., BINS].
    """
    # Differences of sums can be negative by rounding.
    returned, lost = np.maximum(counts, 0.0)
    events = returned + lost
    later = np.flip(np.cumsum(np.flip(events, -1), axis=-1), -1) - events
    exposure = (later + events / 2) * _WIDTHS
    evidence = _EVIDENCE * _WIDTHS
    hazard: Array = (returned + evidence * prior) / (exposure + evidence)
    return hazard


def _gittins(mass: Array) -> Array:
    """Return the value of waiting by bin, [rows, BINS].

    Args:
        mass: in proportion to the probability of returning in each bin, and never, [rows, BINS + 1]; within a bin,
            returns are spread evenly.
    """
    alive = np.flip(np.cumsum(np.flip(mass, -1), axis=-1), -1)
    waited = np.concatenate(
        [
            np.zeros((len(mass), 1)),
            np.cumsum((alive[:, 1:] + alive[:, :-1]) / 2 * _WIDTHS, axis=-1),
        ],
        axis=-1,
    )
    hits = alive[:, :-1, None] - alive[:, None, 1:]
    seconds = waited[:, None, 1:] - waited[:, :-1, None]
    later = np.triu(np.ones((BINS, BINS), bool))
    values: Array = np.where(later, hits / np.where(later, seconds, 1.0), 0.0).max(axis=-1, initial=_LOWEST)
    return values
