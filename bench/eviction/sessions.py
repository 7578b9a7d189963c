"""``--trace``: sessions of real agents, replayed with every policy on SGLang's radix cache, a block as a token."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from bench.eviction.clairvoyant import clairvoyant
from bench.eviction.closed_loop import closed_loop, trace_of
from bench.eviction.outcome import Outcome
from bench.eviction.policies import CLAIRVOYANT, POLICIES
from bench.eviction.pool_replay import PoolReplay
from bench.eviction.report import BASELINE, SessionRow, gap_closed
from bench.traces.prefix_tree import PrefixTree
from bench.traces.sessions import Half, Session, load_sessions
from bench.traces.trace import Trace

BLOCK = 64
"""Tokens."""
POOLS = (900_000, 1_300_000, 1_900_000)
"""Tokens. LRU misses 15 to 70% of the public corpus in them."""
ARMS = (
    *("lru", "slru", "session-radix", "paper", "density-endless", "density", "density-hints"),
    CLAIRVOYANT,
)
REQUESTS, QUICK_REQUESTS = 10_000, 2_000
"""Sessions are added until they have so many."""


class Traffic(NamedTuple):
    """Which sessions are replayed, and how."""

    path: Path
    half: Half
    requests: int
    at_once: int
    """Sessions."""
    largest: int
    """Blocks: sessions with longer prompts are left out."""

    def sessions(self, seed: int) -> list[Session]:
        """Sessions in the order of a seed.

        Raises `ValueError` when none fits into the pool, and `ValueError` and `OSError` as `load_sessions`.
        """
        known = [
            session
            for session in _loaded(self.path, self.half)
            # A prompt's last block may lie in the pool twice for a moment.
            if max(len(call.blocks) for _, call in session.everywhere()) + 2 <= self.largest
        ]
        random.Random(seed).shuffle(known)
        chosen: list[Session] = []
        found = 0
        for session in known:
            if found >= self.requests:
                break
            chosen.append(session)
            found += sum(1 for _ in session.everywhere())
        if not chosen:
            raise ValueError(f"no sessions fit into a pool of {self.largest * BLOCK:,} tokens")
        return chosen


@lru_cache(maxsize=1)
def _loaded(path: Path, half: Half) -> Sequence[Session]:
    return load_sessions(path, half)


@lru_cache(maxsize=1)
def _built(traffic: Traffic, seed: int) -> tuple[Sequence[Session], Trace, PrefixTree]:
    sessions = traffic.sessions(seed)
    trace = trace_of(sessions)
    return sessions, trace, PrefixTree(trace)


class SessionWork(NamedTuple):
    """Replays of the same requests in the same order."""

    traffic: Traffic
    seed: int
    pool: int
    policies: Sequence[str]

    def done(self) -> list[SessionRow]:
        sessions, trace, tree = _built(self.traffic, self.seed)
        pool = self.pool // BLOCK
        events, moments = closed_loop(sessions, trace, tree, pool, self.traffic.at_once, self.seed)
        outcomes = {
            policy: clairvoyant(trace, tree, events, pool)
            if policy == CLAIRVOYANT
            else PoolReplay(trace, events, pool, POLICIES[policy], moments).run()
            for policy in dict.fromkeys((BASELINE, *self.policies, CLAIRVOYANT))
        }
        return list(self._rows(outcomes, len(sessions)))

    def _rows(self, outcomes: dict[str, Outcome], sessions: int) -> Iterator[SessionRow]:
        baseline, bound = (outcomes[name].prefill_tokens for name in (BASELINE, CLAIRVOYANT))
        for policy, outcome in outcomes.items():
            timed = policy != CLAIRVOYANT and outcome.evicted_tokens > 0
            yield SessionRow(
                policy=policy,
                pool=self.pool,
                seed=self.seed,
                sessions=sessions,
                requests=sum(agent.requests for agent in outcome.by_agent.values()),
                prompt_blocks=outcome.prompt_tokens,
                missed=outcome.prefill_tokens / outcome.prompt_tokens,
                gap_closed=gap_closed(baseline, outcome.prefill_tokens, bound),
                evictions=outcome.evict_calls,
                evicted_blocks=outcome.evicted_tokens,
                us_per_block=1e6 * outcome.evict_seconds / outcome.evicted_tokens if timed else None,
            )
