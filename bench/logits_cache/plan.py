"""How many states and samples fit into the time there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.logits_cache.workloads import (
    RANDOM_THOUGHT_TOKENS,
    SHARPENED_FROM,
    THOUGHT_TOKENS,
    Block,
    WorkloadName,
)


@dataclass(frozen=True, slots=True)
class Speed:
    """What a request costs at one concurrency, measured in a short calibration (seconds)."""

    cold_s: float
    """To the first token, for a prompt that the server has not seen."""
    warm_s: float
    """The same for one that it has."""
    step_s: float


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a block may be, and who takes part in it."""

    states: int
    samples: int
    """Per state, as wanted."""
    samples_least: int
    """The fewest that still say something."""
    tokens_expected: int
    """Typical length of an output."""
    plain_arms: int
    replaying_arms: int


def state_seconds(block: Block, extent: Extent, samples: int, speed: Speed) -> float:
    """What one place in flight takes for one state in all arms, one after the other.

    At temperature 0 a replaying arm computes the first sample of a state only; at others its hits are not known
    beforehand, and the plan expects none.
    """
    decode_s = extent.tokens_expected * speed.step_s
    first = speed.cold_s + decode_s
    others = (samples - 1) * (speed.warm_s + decode_s)
    replayed = first if block.temperature == 0 else first + others
    return extent.plain_arms * (first + others) + extent.replaying_arms * replayed


def fit(block: Block, extent: Extent, seconds: float | None, speed: Speed) -> Block:
    """The block with as many states and samples as fit into ``seconds``; with all of them where that is None.

    There is at least one state for every place in flight, and then as many samples as fit, or else as many states
    with all samples as fit.
    """
    if seconds is None:
        return replace(block, states=extent.states, samples=extent.samples)
    samples = extent.samples
    while samples > extent.samples_least and state_seconds(block, extent, samples, speed) > seconds:
        samples -= 1
    in_turn = max(1, int(seconds / state_seconds(block, extent, samples, speed)))
    return replace(block, states=min(extent.states, block.concurrency * in_turn), samples=samples)


@dataclass(frozen=True, slots=True)
class Part:
    """Something to measure that takes time."""

    least_s: float
    """Estimate of its smallest form."""
    weight: float
    """Share of the time that is left over, relative to other parts."""
    optional: bool = False
    """Whether it may be left out where time is short."""


def affordable(parts: Sequence[Part], seconds: float | None) -> list[bool]:
    """Which parts to measure: the dearest optional ones are left out until the rest fits into ``seconds``."""
    chosen = [True] * len(parts)
    if seconds is None:
        return chosen
    for index in sorted(range(len(parts)), key=lambda index: -parts[index].least_s):
        needed = sum(part.least_s for part, taken in zip(parts, chosen, strict=True) if taken)
        if needed > seconds and parts[index].optional:
            chosen[index] = False
    return chosen


class Clock:
    """Divides the time until a deadline (``time.monotonic()``) among the parts that are left.

    Each gets what its smallest form needs, and its share of what is over by weight.
    """

    def __init__(
        self, deadline: float | None, parts: Sequence[Part], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._deadline = deadline
        self._parts = list(parts)
        self._now = now

    def next(self) -> float | None:
        """Seconds for the next part; None without a deadline."""
        part = self._parts[0]
        needed = sum(other.least_s for other in self._parts)
        share = part.weight / sum(other.weight for other in self._parts)
        del self._parts[0]
        if self._deadline is None:
            return None
        return part.least_s + max(0.0, self._deadline - self._now() - needed) * share


def templates(
    workloads: Sequence[WorkloadName],
    temperatures: Sequence[float],
    concurrencies: Sequence[int],
    sharpnesses: Sequence[float],
    tokens: int,
    has_text: bool,
) -> list[Block]:
    """Every block of a run, still without states and samples, the ones that matter most first.

    ``tokens`` is the length of long outputs.
    """
    least = min(concurrencies)
    resample = [Block("resample", t, c, tokens, 0, 0) for c in concurrencies for t in temperatures]
    search = [
        Block("search", t, c, THOUGHT_TOKENS if has_text else RANDOM_THOUGHT_TOKENS, 0, 0, grammar=grammar)
        for c in concurrencies
        for grammar in ((False, True) if has_text else (False,))
        for t in temperatures
    ]
    # Speed-up against entropy is asked of the lightest load only.
    sharpened = [
        Block("sharpened", SHARPENED_FROM / s, least, tokens, 0, 0, sharpness=s) for s in sharpnesses
    ]
    ordered = [
        *(block for block in resample if block.concurrency == least),
        *search,
        *sharpened,
        *(block for block in resample if block.concurrency > least),
    ]
    return [block for block in ordered if block.workload in workloads]
