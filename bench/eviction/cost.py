"""What evicting costs where the tree has many leaves: policies in turns, on the same requests."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import BaseModel

from bench.eviction.policies import POLICIES
from bench.eviction.pool_replay import PoolReplay
from bench.eviction.workload import Generator
from bench.traces.trace import Event, Request, Tokens, Trace

LEAVES = 10_000
_AGENTS = 8
_SYSTEM_TOKENS = 200
_PROMPT_TOKENS, _OUTPUT_TOKENS = 48, 16
"""Of each request, unlike any other's: all of it enters the tree."""
_TURN = 200
"""Requests of a policy's turn: enough for a policy that evicts a hundredth of the pool at once to do so twice."""


class CostRow(BaseModel):
    """One policy; the figures are medians over its turns."""

    policy: str
    leaves: int
    """Evictable ones, all the time."""
    pool: int
    us_per_token: float
    """Microseconds for each token evicted."""
    ms_per_call: float
    """Milliseconds that an allocation which finds no room waits."""
    tokens_per_call: float
    turns: int


def measure_cost(policies: Sequence[str], turns: int, leaves: int = LEAVES) -> list[CostRow]:
    """Time the evictions of some policies.

    Every request ends as one leaf of its own, and the pool has room for `leaves` of them, so that from then on each
    request takes the place of another one. Turns of the policies alternate: whatever else the machine does, it does
    to all of them.
    """
    trace, events = _requests(leaves + turns * _TURN)
    pool = _AGENTS * _SYSTEM_TOKENS + leaves * (_PROMPT_TOKENS + _OUTPUT_TOKENS) + 1
    replays = {name: PoolReplay(trace, events, pool, POLICIES[name]) for name in policies}
    # Two events for each request.
    for replay in replays.values():
        for event in events[: 2 * leaves]:
            replay.step(event)
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in policies}
    for start in range(2 * leaves, len(events), 2 * _TURN):
        for name, replay in replays.items():
            before = replay.outcome.evict_seconds, replay.outcome.evicted_tokens, replay.outcome.evict_calls
            for event in events[start : start + 2 * _TURN]:
                replay.step(event)
            seconds = replay.outcome.evict_seconds - before[0]
            tokens = replay.outcome.evicted_tokens - before[1]
            calls = replay.outcome.evict_calls - before[2]
            measured[name].append((1e6 * seconds / tokens, 1e3 * seconds / calls, tokens / calls))
    rows: list[CostRow] = []
    for name, replay in replays.items():
        replay.check()
        us_per_token, ms_per_call, tokens_per_call = map(statistics.median, zip(*measured[name], strict=True))
        rows.append(
            CostRow(
                policy=name,
                leaves=len(replay.cache.evictable_leaves),
                pool=pool,
                us_per_token=us_per_token,
                ms_per_call=ms_per_call,
                tokens_per_call=tokens_per_call,
                turns=turns,
            )
        )
    return rows


def _requests(count: int) -> tuple[Trace, Sequence[Event]]:
    """Requests one after another."""
    draw = Generator(0)
    system: list[Tokens] = [draw.tokens(_SYSTEM_TOKENS) for _ in range(_AGENTS)]
    requests = [
        Request(
            f"agent {number % _AGENTS}",
            None,
            system[number % _AGENTS] + draw.tokens(_PROMPT_TOKENS),
            draw.tokens(_OUTPUT_TOKENS + 1),
        )
        for number in range(count)
    ]
    events: list[Event] = []
    for number in range(count):
        events += [("start", number), ("finish", number)]
    return Trace(requests, events), events
