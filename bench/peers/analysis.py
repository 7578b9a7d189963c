"""From turns to figures. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel

from bench.harness.statistics import interval_over_blocks
from bench.peers.arms import OURS, ArmName, WorkloadName, is_peer
from bench.peers.turns import Turn

Figure = Literal[
    "solved_per_minute",
    "tasks_per_minute",
    "step_p50_ms",
    "tokens_computed_per_solved",
    "prompt_tokens_per_request",
]
BETTER: dict[Figure, Literal["higher", "lower"]] = {
    "solved_per_minute": "higher",
    "tasks_per_minute": "higher",
    "step_p50_ms": "lower",
    "tokens_computed_per_solved": "lower",
    "prompt_tokens_per_request": "lower",
}
PER_REQUEST: frozenset[Figure] = frozenset({"step_p50_ms", "prompt_tokens_per_request"})
"""Figures in which `n_k` is not compared: its requests hold several answers each."""


def wall_s(turns: Sequence[Turn]) -> float:
    return sum(turn.wall_s for turn in turns)


def solved(turns: Sequence[Turn]) -> int:
    return sum(turn.score.solved for turn in turns)


def step_ms(turns: Sequence[Turn], percentile: float) -> float | None:
    """Percentile of the latencies of all steps; None without any."""
    latencies = [latency for turn in turns for latency in turn.steps.latencies_s]
    return 1e3 * float(np.percentile(latencies, percentile)) if latencies else None


def prefilled(turns: Sequence[Turn]) -> int | None:
    """Prompt tokens that the model read in all turns; None unless the server counted them in each."""
    counted = [turn.computed.prefilled for turn in turns if turn.computed is not None]
    return sum(counted) if len(counted) == len(turns) else None


def figure(turns: Sequence[Turn], what: Figure) -> float | None:
    """A figure of some turns together; None where there is nothing to compute it from."""
    match what:
        case "solved_per_minute":
            return 60 * solved(turns) / wall_s(turns) if turns else None
        case "tasks_per_minute":
            return 60 * sum(turn.score.tasks for turn in turns) / wall_s(turns) if turns else None
        case "step_p50_ms":
            return step_ms(turns, 50)
        case "tokens_computed_per_solved":
            generated = sum(turn.steps.generated for turn in turns)
            return generated / solved(turns) if solved(turns) else None
        case "prompt_tokens_per_request":
            read, requests = prefilled(turns), sum(len(turn.steps.latencies_s) for turn in turns)
            return None if read is None or not requests else read / requests


class Ratio(BaseModel):
    """A figure of Hive over that of another arm in the same workload."""

    workload: WorkloadName
    figure: Figure
    better: Literal["higher", "lower"]
    ours: ArmName
    other: ArmName
    best_peer: bool
    """Whether the other is the best peer in this figure, and not stock SGLang because it is stock SGLang."""
    value: float | None
    """None where one of the two has no figure, or the other's is zero."""
    low: float | None
    high: float | None
    """The middle 95% of ratios over blocks drawn with replacement; None with less than two blocks."""
    command: str
    """What measures it again."""


def ratio(ours: Sequence[Turn], other: Sequence[Turn], what: Figure) -> float | None:
    above, below = figure(ours, what), figure(other, what)
    return None if above is None or not below else above / below


def interval(ours: Sequence[Turn], other: Sequence[Turn], what: Figure) -> tuple[float, float] | None:
    """What the ratio could have been with other blocks, with 95%.

    A block's turns stay together: both arms had its tasks, and about its time of the machine. Draws in which nothing
    is solved have no ratio.
    """
    mine, theirs = ({turn.block: turn for turn in turns} for turns in (ours, other))

    def of_blocks(drawn: Sequence[int]) -> float | None:
        return ratio([mine[block] for block in drawn], [theirs[block] for block in drawn], what)

    return interval_over_blocks(sorted(mine.keys() & theirs.keys()), of_blocks)


def best_peer(by_arm: dict[ArmName, list[Turn]], what: Figure) -> ArmName | None:
    """The peer that does best; None without one that has the figure."""
    choose: Callable[..., tuple[float, ArmName]] = max if BETTER[what] == "higher" else min
    known = [
        (value, arm)
        for arm, turns in by_arm.items()
        if is_peer(arm)
        and not (what in PER_REQUEST and arm == "n_k")
        and (value := figure(turns, what)) is not None
    ]
    return choose(known)[1] if known else None


def ratios(workload: WorkloadName, by_arm: dict[ArmName, list[Turn]], command: str) -> list[Ratio]:
    """Hive against stock SGLang and against the best peer, in every figure."""
    found: list[Ratio] = []
    for mine in OURS:
        for what, better in BETTER.items():
            others: list[tuple[ArmName | None, bool]] = [("stock", False), (best_peer(by_arm, what), True)]
            for other, best in others:
                if mine not in by_arm or other is None or other not in by_arm:
                    continue
                ours, theirs = by_arm[mine], by_arm[other]
                low, high = interval(ours, theirs, what) or (None, None)
                where = {"workload": workload, "figure": what, "better": better, "command": command}
                arms = {"ours": mine, "other": other, "best_peer": best}
                value = ratio(ours, theirs, what)
                found.append(Ratio(**where, **arms, value=value, low=low, high=high))
    return found
