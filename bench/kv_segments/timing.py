"""From turns to figures. Pure functions.

As in the paper (section 4.2), a workflow's time to the first token is the mean over its decode calls; the time of a
problem is the median over its repetitions; what is compared is the median over the problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from bench.kv_segments.accounting import KV
from bench.kv_segments.arms import Call
from bench.kv_segments.speed import Turn

Measure = Callable[[Turn], float]
"""Seconds of a turn."""


def ttft_s(turn: Turn) -> float:
    """Mean over the decode calls: from sending to the first token."""
    return fmean(call.ttft_s for call in _decodes(turn))


def ttft_with_prefill_s(turn: Turn) -> float:
    """The same, with the time of prefill calls shared out among the decode calls.

    Messages that were prefilled are not computed in the decode call that first sees them, as they are by the baseline.
    """
    prefills = [call for call in turn.calls if not call.decode]
    # They run at the same time: what they take is from the first one's start to the last one's end.
    whole = (
        max(call.ended_s for call in prefills) - min(call.started_s for call in prefills) if prefills else 0.0
    )
    return ttft_s(turn) + whole / len(_decodes(turn))


def by_problem(turns: Sequence[Turn], measure: Measure) -> dict[int, float]:
    """Problem to the median of its repetitions."""
    values: dict[int, list[float]] = {}
    for turn in turns:
        values.setdefault(turn.problem, []).append(measure(turn))
    return {problem: median(some) for problem, some in values.items()}


def ratios(over: Mapping[int, float], under: Mapping[int, float]) -> list[float]:
    """One over the other, for each problem that both have."""
    return [over[problem] / under[problem] for problem in sorted(over.keys() & under.keys())]


def kv_total(turns: Sequence[Turn]) -> KV:
    """Of all decode calls together."""
    return sum((call.kv for turn in turns for call in _decodes(turn)), KV())


def ttft_by_call_ms(turns: Sequence[Turn]) -> dict[str, float]:
    """Name of a decode call to the median of its time to the first token, in the order in which calls are made."""
    times: dict[str, list[float]] = {}
    for turn in turns:
        for call in sorted(_decodes(turn), key=lambda call: call.started_s):
            times.setdefault(call.name, []).append(1e3 * call.ttft_s)
    return {name: median(some) for name, some in times.items()}


def _decodes(turn: Turn) -> list[Call]:
    return [call for call in turn.calls if call.decode]
