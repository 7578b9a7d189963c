"""A few new tokens behind a thousand that are cached: how long the first token takes, beside a step of decoding.

What an ordinary chat turn and a resample of a cached prompt are to the engine: an extend of a few tokens. Prompts are
cached beforehand; of what is behind them the first token is another one in every request, so that nothing is found of
it, in any cache.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from pydantic import BaseModel

from bench.harness.client import together
from bench.logits_cache.arms import Arm
from bench.logits_cache.client import Timing
from bench.logits_cache.workloads import State

NEW_TOKENS: Final = (1, 8, 16, 32)
CACHED_TOKENS: Final = 1000
ANSWER_TOKENS: Final = 12
"""Enough for a handful of decode steps behind the first token."""
ROUNDS: Final = 40
ROUNDS_LEAST: Final = 2


class ShortExtends(BaseModel):
    """Requests with some new tokens, on both servers in turn: medians over the requests."""

    new_tokens: int
    at_once: int
    adapter: str | None
    """The LoRA adapter that answers; None is the model itself."""
    requests: int
    """In each of the two arms."""
    cached_tokens: int
    """Of a prompt, as the servers say, the least of all."""
    hive_ttft_ms: float
    stock_ttft_ms: float
    hive_step_ms: float
    """A step of decoding, behind the first token of the same requests."""
    stock_step_ms: float
    speedup: float
    """Time to the first token on stock SGLang over that on Hive."""
    hive_in_steps: float
    """Time to the first token over that of a step."""
    stock_in_steps: float


class Case(NamedTuple):
    """What is asked together."""

    new_tokens: int
    at_once: int


def cases(at_once: Sequence[int]) -> list[Case]:
    return [Case(new, together) for together in at_once for new in NEW_TOKENS]


class Texts:
    """Prompts, and what may stand behind them."""

    def __init__(self, tokens: Sequence[int], count: int, cached: int = CACHED_TOKENS) -> None:
        """``count`` prompts of ``cached`` tokens are cut from longer text.

        Raises `ValueError` when it is too short for that.
        """
        self._tokens = tokens
        order = random.Random(0)
        # A place for every different token: what begins with different tokens has nothing in common for a cache.
        places = {token: place for place, token in enumerate(tokens[: len(tokens) - cached])}
        if len(places) < count:
            raise ValueError(f"{len(tokens)} tokens are too few for {count} prompts")
        self.prompts = [
            tuple(tokens[begin : begin + cached]) for begin in order.sample(list(places.values()), count)
        ]
        self._unused = [order.sample(list(places.values()), len(places)) for _ in self.prompts]

    def behind(self, prompt: int, length: int) -> tuple[int, ...]:
        """New tokens behind a prompt, the first of which never stood there.

        Raises `ValueError` when every token has.
        """
        if not self._unused[prompt]:
            raise ValueError("the text has too few different tokens; take a longer one")
        place = self._unused[prompt].pop()
        return tuple(self._tokens[place : place + length])


async def measure_short_extends(
    hive: Arm,
    stock: Arm,
    texts: Texts,
    at_once: Sequence[int],
    adapter: str | None,
    seconds: float | None,
) -> list[ShortExtends]:
    """Rounds of all cases, which both servers get in turn; ends early when ``seconds`` are over."""
    arms = (hive, stock)
    for arm in arms:
        await arm.client.flush()
        await _together(arm, texts.prompts, adapter, 1)
    timings: dict[tuple[Case, Arm], list[Timing]] = {
        (case, arm): [] for case in cases(at_once) for arm in arms
    }
    asked: Iterator[int] = itertools.cycle(range(len(texts.prompts)))

    async def play(number: int) -> None:
        for case in cases(at_once):
            chosen = [next(asked) for _ in range(case.at_once)]
            ids = [(*texts.prompts[each], *texts.behind(each, case.new_tokens)) for each in chosen]
            for arm in arms if number % 2 else reversed(arms):
                timings[case, arm] += await _together(arm, ids, adapter, ANSWER_TOKENS)

    # Kernels may be compiled, and memory taken, when something is asked for the first time.
    await play(0)
    for taken in timings.values():
        taken.clear()
    began = time.monotonic()
    for number in range(ROUNDS):
        if seconds is not None and time.monotonic() - began > seconds and number >= ROUNDS_LEAST:
            break
        await play(number)
    return [_figures(case, adapter, timings[case, hive], timings[case, stock]) for case in cases(at_once)]


def _figures(
    case: Case, adapter: str | None, hive: Sequence[Timing], stock: Sequence[Timing]
) -> ShortExtends:
    (first, step), (stock_first, stock_step) = (
        (
            1e3 * median(timing.ttft_s for timing in timings),
            1e3 * median((timing.latency_s - timing.ttft_s) / (timing.tokens - 1) for timing in timings),
        )
        for timings in (hive, stock)
    )
    return ShortExtends(
        new_tokens=case.new_tokens,
        at_once=case.at_once,
        adapter=adapter,
        requests=len(hive),
        cached_tokens=min(timing.cached for timing in (*hive, *stock)),
        hive_ttft_ms=first,
        stock_ttft_ms=stock_first,
        hive_step_ms=step,
        stock_step_ms=stock_step,
        speedup=stock_first / first,
        hive_in_steps=first / step,
        stock_in_steps=stock_first / stock_step,
    )


async def _together(
    arm: Arm, prompts: Sequence[tuple[int, ...]], adapter: str | None, tokens: int
) -> list[Timing]:
    params = {
        "temperature": 0.7,
        "max_new_tokens": tokens,
        "ignore_eos": True,
        # One chunk with the first token and one with the end.
        "stream_interval": tokens + 1,
    }

    async def one(ids: tuple[int, ...]) -> Timing:
        state = State("short-extends", ids, None)
        return await arm.client.generate(ids, arm.params(params, "short-extends", state, 0), adapter)

    return await together(map(one, prompts))
