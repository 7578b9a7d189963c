"""Evict the KV with the lowest expected hits per token and per unit of time that it stays resident.

There are two estimates of that, in the same unit, hits per token and admission.

**KV that only one dialogue used** is needed when the dialogue's next request arrives.  Its worth follows from the value
of waiting for that (:mod:`hive.server.eviction.returns`), the part of such KV that next requests of this agent have
used, and the hit density of its class (:mod:`hive.server.eviction.waiting`).  The part is learned by number of hits,
and for KV off the dialogue's path, because a later request departed from it.

**Other KV** (shared, or of requests without times) has its hit density, after LHD (Beckmann et al., NSDI 2018).  A
class is the agent that used the node last, how often it was used (0, 1, 2, more), and whether several sessions share
it.  Each class has two histograms over age in admissions: of tokens that were reused, and of tokens that were evicted.
At age a:

    density(a) = sum of hits at ages >= a  /  sum over hits and evictions at ages x >= a of (x - a + 1)

A class with little evidence is shrunk towards the same class over all agents, scaled by its agent's contribution
score.  Those in turn are shrunk towards 1 / (1 + a), under which worth falls with age: LRU.

Anonymous requests are a mixture of programs, in which the estimator finds patterns that are not there: on random
chats it was measured up to 10% worse than LRU.  So their density may not rise with age (an agent has a period, a
mixture has none), and all turns of a dialogue are one class, whatever their depth.  Without other evidence, this is
LRU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hive.server.agents.registry import OTHER
from hive.server.eviction.agent_numbers import AgentNumbers
from hive.server.eviction.base import EvictionPolicy, Score, Weigh
from hive.server.eviction.dialogues import HIT_BUCKETS, Dialogue, hit_bucket
from hive.server.eviction.hints import Hint
from hive.server.eviction.node import NodeRecord
from hive.server.eviction.waiting import FIRST_CLASS, Waiting

AGE_BINS = 48
BINS_PER_DOUBLING = 3
_BUCKET_OF_ENDS = (0, 0, 1, 2, 2, 3)
"""Hit bucket by number of branches, for anonymous requests: a dialogue branches once behind each of its turns."""
_KINDS = HIT_BUCKETS * 2
_AGENTS_PER_REFRESH = 64
"""Agents that one estimate covers in about a millisecond."""

_BIN_AGES: NDArray[np.float64] = 2.0 ** ((np.arange(AGE_BINS) + 0.5) / BINS_PER_DOUBLING) - 1.0
_LRU: NDArray[np.float64] = 1.0 / (1.0 + _BIN_AGES)

DEAD = -2.0
"""Worth of KV that cannot be used again: below every density."""


@dataclass(frozen=True)
class DensitySettings:
    """Constants of the estimate."""

    evidence: float = 2000.0
    """Tokens of evidence that weigh as much as the prior."""
    half_life: int = 1024
    """Admissions after which the weight of evidence is halved."""
    refresh: int = 16
    """Admissions between two estimates: fewer while there is little evidence, more with many agents, whose estimates
    take longer."""


class DensityPolicy(EvictionPolicy):
    """Evicts the KV with the lowest hit density (see the module's docstring)."""

    name = "density"
    about = "the KV with the lowest expected hits per token"
    trims = True

    def __init__(self, score: Score, settings: DensitySettings | None = None) -> None:
        self.settings = settings or DensitySettings()
        self._score = score
        self._agents = AgentNumbers()
        self._waiting = Waiting()
        shape = (8, _KINDS, AGE_BINS)
        self._hits = np.zeros(shape)
        self._evictions = np.zeros(shape)
        self._density = np.zeros(shape)
        self._refreshed: int | None = None
        """Clock of the last estimate; None if the next use must compute a new one."""
        self._weighed = 0
        """Clock at which evidence has weight 1; later evidence weighs more."""

    @classmethod
    def of_server(cls, score: Score) -> Self:
        return cls(score)

    def class_of(self, node: NodeRecord) -> int:
        """(agent, hits, shared) or (dialogue, turn, hits) as one number; -1 for a dead node."""
        if node.dead:
            return -1
        if node.dialogue is not None:
            return self._waiting.class_of(node.dialogue, node.turn, _kind(node) // 2)
        return self._agent(node.agent) * _KINDS + _kind(node)

    def reused(self, node: NodeRecord, tokens: int, clock: int) -> None:
        place, weight = self._place(node, clock), self._weight(clock)
        self._hits[place] += tokens * weight

    def evicted(self, node: NodeRecord, tokens: int, clock: int) -> None:
        if not node.dead:
            # The eviction of a dead node was certain not to cost a hit: it is no evidence about its class.
            place, weight = self._place(node, clock), self._weight(clock)
            self._evictions[place] += tokens * weight

    def continued(self, dialogue: Dialogue, now: float, clock: int, matched: Sequence[int], old: int) -> None:
        self._waiting.continued(dialogue, self._agent(dialogue.agent), now, clock, matched, old)

    def departed(self, dialogue: Dialogue, clock: int) -> None:
        if (agent := self._agents.find(dialogue.agent)) is not None:
            self._waiting.departed(dialogue, agent, clock)

    def hinted(self, dialogue: Dialogue, hint: Hint, now: float) -> None:
        if (agent := self._agents.find(dialogue.agent)) is not None:
            self._waiting.hinted(dialogue, agent, hint)

    def retained(self, dialogues: Collection[Dialogue]) -> None:
        self._waiting.retained(dialogues)

    def ended(self, dialogue: Dialogue) -> None:
        self._waiting.ended(dialogue)

    def lost(self, dialogue: Dialogue, now: float, clock: int) -> None:
        self._waiting.lost(dialogue, now, clock)

    def weighing(self, clock: int, now: float) -> Weigh:
        def weigh(classes: NDArray[np.int32], used: NDArray[np.int64]) -> NDArray[np.float64]:
            # Refresh here: a parent that became a leaf during this eviction may belong to a new agent.
            self._refresh(clock)
            waiting = classes >= FIRST_CLASS
            density = np.where(waiting, 0, classes)
            worth: NDArray[np.float64] = self._density.reshape(-1, AGE_BINS)[density, age_bins(clock - used)]
            if waiting.any():
                bins = age_bins(clock - used[waiting])

                def density_of(agents: NDArray[np.int32], hits: NDArray[np.int32]) -> NDArray[np.float64]:
                    found: NDArray[np.float64] = self._density[agents, hits * 2, bins]
                    return found

                worth[waiting] = self._waiting.worth(classes[waiting], now, clock, density_of)
            worth[classes < 0] = DEAD
            return worth

        return weigh

    def forget(self, agent: str) -> None:
        number = self._agents.forget(agent)
        if number is not None:
            # The next agent with this number starts without evidence, and until the next estimate with the prior.
            self._hits[number] = self._evictions[number] = 0.0
            self._waiting.forget(number)
            self._refreshed = None

    def _agent(self, name: str) -> int:
        number = self._agents.of(name)
        while number >= len(self._hits):
            more = ((0, len(self._hits)), (0, 0), (0, 0))
            self._hits, self._evictions = np.pad(self._hits, more), np.pad(self._evictions, more)
            self._density = np.pad(self._density, more)
            # Until the next estimate, the zeros of the new rows would rank their KV as worthless.
            self._refreshed = None
        return number

    def _place(self, node: NodeRecord, clock: int) -> tuple[int, int, int]:
        return self._agent(node.agent), _kind(node), age_bin(clock - node.used)

    def _weight(self, clock: int) -> float:
        """Weight of evidence that arrives now, relative to what is counted already."""
        if clock - self._weighed > self.settings.half_life:
            self._weigh(clock)
        return float(2.0 ** ((clock - self._weighed) / self.settings.half_life))

    def _weigh(self, clock: int) -> None:
        """Rescale all evidence so that evidence of now has weight 1."""
        decay = 0.5 ** ((clock - self._weighed) / self.settings.half_life)
        self._weighed = clock
        self._hits *= decay
        self._evictions *= decay

    def _refresh(self, clock: int) -> None:
        known = len(self._agents)
        interval = min(self.settings.refresh * (1 + known // _AGENTS_PER_REFRESH), 1 + clock // 8)
        if self._refreshed is not None and clock - self._refreshed < interval:
            return
        self._refreshed = clock
        self._weigh(clock)
        evidence = self.settings.evidence
        hits, evictions = self._hits[:known], self._evictions[:known]
        everyone = _densities(hits.sum(axis=0), evictions.sum(axis=0), _LRU, evidence)
        prior = np.repeat(everyone[None], known, axis=0)
        for name, number in self._agents:
            prior[number] *= 0.5 + self._score(name)
        np.minimum(_densities(hits, evictions, prior, evidence), 1.0, out=self._density[:known])
        # For agents that appear before the next estimate.
        self._density[known:] = np.minimum(everyone, 1.0)
        other = self._agents.find(OTHER)
        if other is not None:
            anonymous = self._density[other]
            np.minimum.accumulate(anonymous, axis=-1, out=anonymous)


def _kind(node: NodeRecord) -> int:
    ends = min(node.ends, len(_BUCKET_OF_ENDS) - 1)
    bucket = _BUCKET_OF_ENDS[ends] if node.agent == OTHER else hit_bucket(node.hits)
    return bucket * 2 + node.shared


def age_bin(age: int) -> int:
    """Return the bin of one age."""
    # The bit length of (1 + age)^3 is 1 + floor(3 log2(1 + age)): exact, and faster than a logarithm.
    bits: int = ((1 + age) ** BINS_PER_DOUBLING).bit_length()
    return min(AGE_BINS - 1, bits - 1)


def age_bins(ages: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bins of ages, [n]."""
    bins = np.floor(BINS_PER_DOUBLING * np.log2(1.0 + ages) + 1e-9).astype(np.int64)
    capped: NDArray[np.int64] = np.minimum(bins, AGE_BINS - 1)
    return capped


def _densities(
    hits: NDArray[np.float64], evictions: NDArray[np.float64], prior: NDArray[np.float64], evidence: float
) -> NDArray[np.float64]:
    """Return the hit density by age bin (the last axis), shrunk towards ``prior``."""
    events = hits + evictions
    later_hits = _from_here_on(hits)
    room = _from_here_on(events * _BIN_AGES) - _from_here_on(events) * (_BIN_AGES - 1.0)
    return (later_hits + evidence * prior) / (np.maximum(room, 0.0) + evidence)


def _from_here_on(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.flip(np.cumsum(np.flip(values, -1), axis=-1), -1)
