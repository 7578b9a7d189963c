"""What recording costs: requests that no cache knows, to stock SGLang, to Hive, and to Hive with replay off."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from bench.harness.client import BenchError, together
from bench.logits_cache.analysis import Overhead, overhead
from bench.logits_cache.arms import Arm
from bench.logits_cache.client import Timing
from bench.logits_cache.plan import Speed
from bench.logits_cache.workloads import DRAWS, Block, Prompts, State, Variant, sampling_params

TEMPERATURE = 0.7
ROUNDS = 12
ROUNDS_LEAST = 2


def least_seconds(tokens: int, speed: Speed) -> float:
    """Estimate for the fewest rounds, in three arms."""
    return ROUNDS_LEAST * (2 * speed.cold_s + 3 * (speed.warm_s + tokens * speed.step_s))


async def measure_overhead(
    arms: Sequence[Arm],
    prompts: Prompts,
    concurrency: int,
    tokens: int,
    seconds: float | None,
    variant: Variant,
) -> Overhead:
    """Rounds of ``concurrency`` simultaneous requests of ``tokens`` tokens, which every arm gets in turn.

    ``arms`` are stock, off and the one that records, in this order.  Ends early when ``seconds`` are over.  Caches
    are cold when it begins, and a prompt is used once, so the recording arm never finds it. Raises `BenchError` when
    there are too few unseen prompts.
    """
    block = Block("resample", TEMPERATURE, concurrency, tokens, concurrency, 1)
    timings: list[list[Timing]] = [[] for _ in arms]
    # Off and the recording arm are one server.
    for arm in arms[:2]:
        await arm.client.flush()
    started = time.monotonic()
    for number in range(ROUNDS):
        late = seconds is not None and time.monotonic() - started > seconds
        if late and number >= ROUNDS_LEAST:
            break
        states = prompts.unseen[number * concurrency : (number + 1) * concurrency]
        if len(states) < concurrency:
            raise BenchError(f"{len(prompts.unseen)} unseen prompts are too few: ask for less concurrency")
        # Without this, the second of the two arms of one server would find the prompt's KV there.
        # It records nothing.
        for arm in arms[:2]:
            await _together(arm, replace(block, max_tokens=1), states, prompts.has_text, variant)
        for offset in range(len(arms)):
            index = (number + offset) % len(arms)
            timings[index] += await _together(arms[index], block, states, prompts.has_text, variant)
    stock, off, recording = timings
    return overhead(concurrency, stock, off, recording, variant)


async def _together(
    arm: Arm, block: Block, states: Sequence[State], has_text: bool, variant: Variant
) -> list[Timing]:
    async def one(state: State) -> Timing:
        params = {**sampling_params(block, state, 0, has_text), **DRAWS[variant.draw]}
        return await arm.client.generate(
            state.input_ids, arm.params(params, "overhead", state, 0), variant.adapter
        )

    return await together(map(one, states))
