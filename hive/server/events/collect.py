"""Builds events from the state that a scheduler keeps anyway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hive.server.agents.registry import AgentRegistry
from hive.server.events.event import AgentLine, Agents, LogitsCache, RadixCache, Scores
from hive.server.eviction.accounting import NOT_RESIDENT, ResidencyAccounting
from hive.server.logits_cache import cache as logits_cache

SHOWN_AGENTS = 64
SHOWN_ROUNDS = 64


def agents_event(agents: AgentRegistry, accounting: ResidencyAccounting | None) -> Agents:
    """Return the agents with the most requests, with the fields of ``GET /hive/agents``."""
    shown = agents.busiest(SHOWN_AGENTS)
    lines = []
    for profile in shown:
        residency: dict[str, Any] = (
            accounting.summary_of(profile.name) if accounting is not None else NOT_RESIDENT
        )
        lines.append(
            AgentLine(
                **msgspec.structs.asdict(profile),
                running=agents.window.running(profile.name),
                **residency,
                contribution=agents.window.scores.get(profile.name),
            )
        )
    return Agents(lines, omitted=len(agents) - len(lines))


def scores_event(agents: AgentRegistry) -> Scores:
    """Return the scores of the last rounds; a separate event, as they are large and change only with a round."""
    window = agents.window
    history: dict[str, list[tuple[int, float]]] = {}
    for number, scores in list(window.history)[-SHOWN_ROUNDS:]:
        for name, score in scores.items():
            history.setdefault(name, []).append((number, round(score, 4)))
    return Scores(window.round, history)


def logits_cache_event(cache: logits_cache.LogitsCache) -> LogitsCache:
    """Return the counters of the Logits Cache; ``hit_ratio`` in ``GET /hive/stats`` is replayed / (replayed +
    generated)."""
    counts = cache.statistics
    by_temperature = counts.by_temperature.values()
    return LogitsCache(
        lookups=counts.lookups,
        hits=counts.hits,
        tokens_replayed=sum(tokens["tokens_replayed"] for tokens in by_temperature),
        tokens_generated=sum(tokens["tokens_generated"] for tokens in by_temperature),
        nodes=len(cache.trie),
        bytes=cache.nbytes,
        capacity_bytes=cache.capacity_bytes,
        evicted_nodes=cache.trie.evicted_nodes,
    )


def radix_cache_event(summary: Mapping[str, Any]) -> RadixCache:
    """Return the radix cache's part of ``GET /hive/stats``."""
    return RadixCache(**{name: summary[name] for name in RadixCache.__struct_fields__})
