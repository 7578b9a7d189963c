"""From samples to figures.  Pure functions; times in seconds, entropies in nats.

**Speed-up** of a request is the time that the same request (state and seed) took in the baseline, over the time it
took in the arm.  Where the two outputs differ in length, because an engine's rounding or another sampler led to
other tokens, the baseline's time is corrected by the difference in tokens times its own decode step.

**Ideal** is (prefill + n * step) / (prefill + (1 - hit ratio) * n * step): replay that costs nothing.  Prefill and
step are measured in the baseline, prefill for each request (time to first token less one step, so that a cold prompt
counts as cold), step over the whole block.  Both ratios are of sums over the requests, so the hit ratio is the one
over all their tokens.  A request that is served wholly from the cache saves its prefill, too: more than this ideal.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from pydantic import BaseModel

from bench.harness import statistics
from bench.harness.statistics import mean
from bench.logits_cache.client import Key, Samples, Timing
from bench.logits_cache.workloads import DrawName, Variant


class Speeds(BaseModel):
    """How fast a set of requests was; a figure without a request to compute it from is None."""

    hit_ratio: float | None
    """Replayed tokens over all output tokens."""
    tps_mean: float | None
    """Output tokens per second and request."""
    tps_p50: float | None
    speedup_mean: float | None
    """Against the same server with replay off."""
    speedup_median: float | None
    speedup_vs_stock_mean: float | None
    speedup_vs_stock_median: float | None
    achieved_over_ideal: float | None


class Figures(Speeds):
    """The outcome of a set of requests."""

    requests: int
    achieved: float | None
    """Time of all requests in the baseline over their time in the arm."""
    ideal: float | None


def step_seconds(samples: Samples) -> float:
    """Mean time of a decode step: time after the first token, per further token.  NaN without further tokens."""
    steps = sum(timing.tokens - 1 for timing in samples.values())
    if steps <= 0:
        return math.nan
    return sum(timing.latency_s - timing.ttft_s for timing in samples.values()) / steps


def base_seconds(timing: Timing, base: Timing, base_step_s: float) -> float:
    """Time that the baseline takes for as many tokens as ``timing`` has."""
    if timing.tokens == base.tokens:
        return base.latency_s
    return max(base.ttft_s, base.latency_s + (timing.tokens - base.tokens) * base_step_s)


def speedups(arm: Samples, base: Samples, keys: Collection[Key]) -> list[float]:
    """One per request, against the same request in ``base``."""
    step_s = step_seconds(base)
    return [base_seconds(arm[key], base[key], step_s) / arm[key].latency_s for key in keys]


def achieved_speedup(arm: Samples, base: Samples, keys: Collection[Key]) -> float:
    """Time of all requests in ``base`` over their time in ``arm``."""
    step_s = step_seconds(base)
    expected = sum(base_seconds(arm[key], base[key], step_s) for key in keys)
    return expected / sum(arm[key].latency_s for key in keys)


def ideal_speedup(arm: Samples, base: Samples, keys: Collection[Key]) -> float:
    """What :func:`achieved_speedup` would be if a replayed token cost nothing."""
    step_s = step_seconds(base)
    prefill = sum(base[key].ttft_s - step_s for key in keys)
    tokens = sum(arm[key].tokens for key in keys)
    generated = sum(arm[key].tokens - arm[key].replayed for key in keys)
    return (prefill + tokens * step_s) / (prefill + generated * step_s)


def hit_ratio(arm: Samples, keys: Collection[Key]) -> float | None:
    """Replayed tokens over output tokens; None without tokens."""
    return statistics.ratio(sum(arm[key].replayed for key in keys), sum(arm[key].tokens for key in keys))


def figures(arm: Samples, base: Samples, stock: Samples | None, keys: Collection[Key]) -> Figures:
    """The figures of the requests named by ``keys``, which must be in ``arm``, ``base`` and ``stock``."""
    tps = [arm[key].tps for key in keys]
    against_base = speedups(arm, base, keys)
    against_stock = speedups(arm, stock, keys) if stock is not None else []
    achieved = achieved_speedup(arm, base, keys) if keys else None
    ideal = _finite(ideal_speedup(arm, base, keys)) if keys else None
    return Figures(
        requests=len(keys),
        hit_ratio=hit_ratio(arm, keys),
        tps_mean=mean(tps),
        tps_p50=statistics.median(tps),
        speedup_mean=mean(against_base),
        speedup_median=statistics.median(against_base),
        speedup_vs_stock_mean=mean(against_stock),
        speedup_vs_stock_median=statistics.median(against_stock),
        achieved=achieved,
        ideal=ideal,
        achieved_over_ideal=achieved / ideal if achieved is not None and ideal else None,
    )


def counted(arm: Samples) -> list[Key]:
    """The requests that the model had a part in: those served wholly from the cache say nothing of its speed."""
    return [key for key, timing in arm.items() if not timing.served_whole]


def share_same(arm: Samples, base: Samples) -> float:
    """Share of the requests whose output in ``arm`` is token for token the one in ``base``."""
    return fmean(timing.output == base[key].output for key, timing in arm.items())


def share_distinct(arm: Samples) -> float:
    """Different outputs of each state, over all outputs: 1 when no two samples of a state are alike."""
    return len({(state, timing.output) for (state, _), timing in arm.items()}) / len(arm)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Interval:
    """A quantity known to lie between two values."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def entropy(logprobs: Sequence[float], vocabulary: int) -> Interval:
    """Entropy of a distribution of which only the largest log-probabilities are known.

    The rest of the mass r is spread over the tokens left out.  It adds most when it is spread evenly, and as each of
    them is at most as likely as the last one known, p, it adds at least -r * log p.
    """
    known = -sum(math.exp(value) * value for value in logprobs)
    rest = max(0.0, 1.0 - sum(map(math.exp, logprobs)))
    left_out = vocabulary - len(logprobs)
    if left_out <= 0 or rest < 1e-9:
        return Interval(known, known)
    low = known - rest * min(logprobs)
    # Rounding may leave more mass than the tokens could hold under their bound.
    return Interval(low, max(low, known + rest * math.log(left_out / rest)))


def mean_interval(intervals: Sequence[Interval]) -> Interval | None:
    """Bounds of the mean; None of nothing."""
    if not intervals:
        return None
    return Interval(fmean(part.low for part in intervals), fmean(part.high for part in intervals))


class Crossing(BaseModel):
    """The entropy up to which an arm reaches a speed-up."""

    speedup: float
    entropy: float | None
    """None when it is not reached at any measured entropy."""
    kind: Literal["interpolated", "at least", "not reached"]
    """``at least``: it is still reached at the highest entropy measured."""


def crossing(points: Sequence[tuple[float, float]], threshold: float) -> Crossing:
    """Where speed-up falls below ``threshold`` as entropy grows; ``points`` are (entropy, speed-up) pairs.

    With noise it may do so more than once: the last time counts.  Between two points it is taken to be linear.
    """
    ordered = sorted(points)
    reached = [index for index, (_, speedup) in enumerate(ordered) if speedup >= threshold]
    if not reached:
        return Crossing(speedup=threshold, entropy=None, kind="not reached")
    last = reached[-1]
    entropy_last, speedup_last = ordered[last]
    if last + 1 == len(ordered):
        return Crossing(speedup=threshold, entropy=entropy_last, kind="at least")
    entropy_next, speedup_next = ordered[last + 1]
    share = (speedup_last - threshold) / (speedup_last - speedup_next)
    return Crossing(
        speedup=threshold,
        entropy=entropy_last + share * (entropy_next - entropy_last),
        kind="interpolated",
    )


class Overhead(BaseModel):
    """Decode speed where every request is new: medians over requests, in tokens/s after the first token."""

    concurrency: int
    draw: DrawName
    """What requests say of drawing, beside the temperature."""
    adapter: str | None
    """The LoRA adapter that answers; None is the model itself."""
    requests: int
    """In each of the three arms."""
    stock_tps: float
    off_tps: float
    recording_tps: float
    against_stock: float
    """Share of stock SGLang's speed that is lost while recording; negative when recording was faster."""
    against_off: float
    """The same against Hive's own sampler with replay and recording off."""
    miss_ms: float
    """Median time to the first token, recording less off: what looking up in vain costs, with its noise."""


def overhead(
    concurrency: int,
    stock: Sequence[Timing],
    off: Sequence[Timing],
    recording: Sequence[Timing],
    variant: Variant,
) -> Overhead:
    stock_tps, off_tps, recording_tps = (
        median((timing.tokens - 1) / (timing.latency_s - timing.ttft_s) for timing in timings)
        for timings in (stock, off, recording)
    )
    return Overhead(
        concurrency=concurrency,
        draw=variant.draw,
        adapter=variant.adapter,
        requests=len(recording),
        stock_tps=stock_tps,
        off_tps=off_tps,
        recording_tps=recording_tps,
        against_stock=1 - recording_tps / stock_tps,
        against_off=1 - recording_tps / off_tps,
        miss_ms=1000 * (median(t.ttft_s for t in recording) - median(t.ttft_s for t in off)),
    )
