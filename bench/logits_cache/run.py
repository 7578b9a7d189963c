"""Sending a block of requests to every arm in turn, and what the arms' distributions look like."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from bench.harness.client import together
from bench.harness.statistics import rotated
from bench.logits_cache.analysis import Interval, entropy, mean_interval
from bench.logits_cache.arms import Arm, ArmName
from bench.logits_cache.client import Client, Key, Timing
from bench.logits_cache.plan import Speed
from bench.logits_cache.workloads import Block, Prompts, State, sampling_params

ROUNDS = 20
"""Into how many rounds a block is cut at the most: in each, every arm has its turn, so that noise hits all alike."""
ENTROPY_STATES = 4
ENTROPY_TOKENS = 100
ENTROPY_TOP = 100
CALIBRATION_TOKENS = 12


@dataclass
class CacheCounters:
    """What the Hive server's cache did over all turns of the step-wise arm."""

    tokens_replayed: int = 0
    replay_seconds: float = 0.0
    nodes: int = 0
    """States kept at the end of a turn, summed over turns: each begins with an empty cache."""
    bytes: int = 0


@dataclass
class BlockResult:
    """All that was measured of a block."""

    block: Block
    samples: dict[ArmName, dict[Key, Timing]]
    wall_s: dict[ArmName, float]
    """Time of an arm's turns together, from the first request sent to the last answer."""
    entropy: Interval | None
    cache: CacheCounters = field(default_factory=CacheCounters)


async def run_block(block: Block, arms: Sequence[Arm], prompts: Prompts, turn: int) -> BlockResult:
    """Send all samples of a block to every arm.

    The states are cut into rounds; in each round every arm, with cold caches, gets the round's states before the
    next round begins.  ``turn`` says which arm begins; the arm that begins moves on with every round.
    """
    result = BlockResult(block, {arm.name: {} for arm in arms}, {arm.name: 0.0 for arm in arms}, None)
    states = prompts.test[: block.states]
    size = max(block.concurrency, -(-len(states) // ROUNDS))
    for number, begin in enumerate(range(0, len(states), size)):
        for arm in rotated(arms, turn + number):
            await _turn(arm, block, states[begin : begin + size], prompts.has_text, result)
    return result


async def _turn(arm: Arm, block: Block, states: Sequence[State], has_text: bool, result: BlockResult) -> None:
    """One arm's turn: places in flight take states from a queue and sample each of them in order."""
    await arm.client.flush()
    # Of the policies that share a server, one is counted: distinct samples also remember what they took.
    before = await _counters(arm.client) if arm.name == "stepwise" else None
    waiting = iter(states)

    async def place() -> None:
        for state in waiting:
            for sample in range(block.samples):
                params = sampling_params(block, state, sample, has_text)
                timing = await arm.client.generate(
                    state.input_ids, arm.params(params, block.workload, state, sample)
                )
                result.samples[arm.name][state.name, sample] = timing

    started = time.perf_counter()
    await together(place() for _ in range(block.concurrency))
    result.wall_s[arm.name] += time.perf_counter() - started
    if before is not None:
        after = await _counters(arm.client)
        result.cache.tokens_replayed += after.tokens_replayed - before.tokens_replayed
        result.cache.replay_seconds += after.replay_seconds - before.replay_seconds
        result.cache.nodes += after.nodes
        result.cache.bytes += after.bytes


async def _counters(client: Client) -> CacheCounters:
    cache = (await client.get("/hive/stats"))["logits_cache"]
    return CacheCounters(
        cache["tokens_replayed"], cache["replay_seconds"], nodes=cache["nodes"], bytes=cache["bytes"]
    )


async def measure_entropy(block: Block, off: Arm, prompts: Prompts, vocabulary: int) -> Interval | None:
    """Mean entropy of the distributions that a block's tokens are drawn from, over a handful of its requests.

    The server says the largest log-probabilities, after temperature and grammar; the rest is bounded.  A greedy
    request draws from no distribution: there it is the entropy of the model's own, at temperature 1.
    """

    async def of_state(state: State) -> list[Interval]:
        params = sampling_params(block, state, 0, prompts.has_text)
        del params["stream_interval"]
        params["max_new_tokens"] = min(ENTROPY_TOKENS, block.max_tokens)
        rows = await off.client.top_logprobs(
            state.input_ids, off.params(params, "entropy", state, 0), min(ENTROPY_TOP, vocabulary)
        )
        return [entropy(row, vocabulary) for row in rows]

    found = await together(map(of_state, prompts.test[: min(ENTROPY_STATES, block.states)]))
    return mean_interval(list(itertools.chain.from_iterable(found)))


async def calibrate(arm: Arm, prompts: Prompts, concurrency: int) -> Speed:
    """What a request costs with ``concurrency`` of them in flight; also warms the server up."""
    block = Block("resample", 0.7, concurrency, CALIBRATION_TOKENS, concurrency, 2)
    await arm.client.flush()

    async def both(state: State) -> list[Timing]:
        timings: list[Timing] = []
        for sample in range(block.samples):
            params = sampling_params(block, state, sample, prompts.has_text)
            timings.append(
                await arm.client.generate(state.input_ids, arm.params(params, "calibration", state, sample))
            )
        return timings

    cold, warm = zip(*await together(map(both, prompts.unseen[-concurrency:])), strict=True)
    return Speed(
        cold_s=fmean(timing.ttft_s for timing in cold),
        warm_s=fmean(timing.ttft_s for timing in warm),
        step_s=fmean((timing.latency_s - timing.ttft_s) / (timing.tokens - 1) for timing in (*cold, *warm)),
    )
