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
        self._alive: Array = np.zeros((64, BINS + 1))
        """By row: the probability that a dialogue has not returned when a bin begins, relative to the first."""
        self._waited: Array = np.zeros((64, BINS + 1))
        """The expected seconds that it has been waited for until then."""
        self._values: Array = np.zeros((64, BINS))
        """NaN where it has not been needed."""
        self._versions = np.full(64, -1)
        self._errors = (0.0, 0.0, 0.0)
        """Of hints: their number, the sum of log(hinted / actual) and that of its squares."""

    def waits(self, dialogue: Dialogue, agent: int, clock: int) -> int:
        """Note that a dialogue has become idle; return the row of its values."""
        kind = _EVENT_NUMBERS[dialogue.event] * RHYTHMS + dialogue.rhythm
        self._waiting.pop(dialogue.number, None)
        self._waiting[dialogue.number] = (agent, kind, dialogue.since, clock)
        self._expire(dialogue.since, clock)
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
        return self._row_of(agent, kind, hint)

    def _row_of(self, agent: int, kind: int, hint: int | None) -> int:
        row = self._rows.get((agent, kind, hint))
        if row is None and len(self._keys) >= _MOST_ROWS:
            agent = -1
            row = self._rows.get((agent, kind, hint))
        if row is None:
            row = self._rows[agent, kind, hint] = len(self._keys)
            self._keys.append((agent, kind, hint))
            if row == len(self._values):
                self._versions = np.concatenate([self._versions, np.full_like(self._versions, -1)])
                self._alive, self._waited, self._values = (
                    np.concatenate([array, np.zeros_like(array)])
                    for array in (self._alive, self._waited, self._values)
                )
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
        for counts in (self._returned, self._lost, *self._agents):
            if agent < len(counts):
                counts[agent] = 0.0
        self._waiting = {number: waited for number, waited in self._waiting.items() if waited[0] != agent}
        self._versions[[row for row, key in enumerate(self._keys) if key[0] == agent]] = -1

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
            self._estimate(stale)
        bins = bins_of(idle)
        values: Array = self._values[rows, bins]
        unknown = np.isnan(values)
        if unknown.any():
            # Each dialogue needs one bin, and others of its class few more.
            at = np.divmod(np.unique(rows[unknown] * BINS + bins[unknown]), BINS)
            self._values[at] = _gittins(self._alive[at[0]], self._waited[at[0]], at[1])
            values = self._values[rows, bins]
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

    def _expire(self, now: float, clock: int) -> None:
        """Count dialogues as lost that have been idle for long."""
        while self._waiting:
            # They are in the order in which they became idle.
            number, (agent, kind, since, clock_then) = next(iter(self._waiting.items()))
            if clock - clock_then <= _HALF_LIFE:
                break
            del self._waiting[number]
            self._count(self._of_agent(agent)[1], agent, kind, now - since, clock)

    def _refresh(self, now: float, clock: int) -> None:
        interval = min(_REFRESH * (1 + len(self._returned) // _AGENTS_PER_REFRESH), 1 + clock // 8)
        if self._refreshed is not None and clock - self._refreshed < interval:
            return
        self._refreshed = clock
        self._version += 1
        self._weigh(clock)
        self._expire(now, clock)
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
        return self._row_of(agent, _ALL, None)

    def _estimate(self, rows: NDArray[np.int32]) -> None:
        """Estimate the survival curves of some rows."""
        keys = [self._keys[row] for row in rows.tolist()]
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
        alive = np.flip(np.cumsum(np.flip(mass, -1), axis=-1), -1)
        # Within a bin, returns are spread evenly.
        waited = np.cumsum((alive[:, 1:] + alive[:, :-1]) / 2 * _WIDTHS, axis=-1)
        self._alive[rows] = alive
        self._waited[rows] = np.concatenate([np.zeros((len(rows), 1)), waited], axis=-1)
        self._values[rows] = np.nan
        self._versions[rows] = self._version

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


def _gittins(alive: Array, waited: Array, bins: NDArray[np.int64]) -> Array:
    """Return the values of waiting, [n].

    Args:
        alive: the probability that the dialogue has not returned when a bin begins, [n, BINS + 1].
        waited: the expected seconds until then, [n, BINS + 1].
        bins: the bin from whose beginning it is waited on, [n].
    """
    at = np.arange(len(bins))
    hits = alive[at, bins][:, None] - alive[:, 1:]
    seconds = waited[:, 1:] - waited[at, bins][:, None]
    later = np.arange(BINS) >= bins[:, None]
    values: Array = np.where(later, hits / np.where(later, seconds, 1.0), 0.0).max(axis=-1, initial=_LOWEST)
    return values
