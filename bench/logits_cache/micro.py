"""Replay without an engine, at the vocabulary of a large model: tokens per second on one core."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from pydantic import BaseModel

from hive.server.logits_cache.head import Head
from hive.server.logits_cache.packing import pack
from hive.server.logits_cache.policies import Stepwise
from hive.server.logits_cache.replay import Replay, Verdict
from hive.server.logits_cache.sampling import SamplingRule, draw, uniform
from hive.server.logits_cache.trie import LogitsTrie, Node, PrefixHash

VOCABULARY = 151_936
"""Of Qwen3."""
HEAD_SIZE = 512
"""Tokens that the sampler selects per row; of these, a kept head has those likely enough to matter."""
DECAY = 1.8
"""The token of rank r has the logit -1.8 ln r, less noise.  At temperature 1 a kept head is then about as long, and
leaves out about as much (1%), as the small model's do on average."""
ROWS = 64
"""Distinct distributions; paths go through them in turn."""
PATHS = 40
PATH_TOKENS = 100
PASSES = 3
"""The fastest counts: what else runs on the machine can only slow it down."""


class MicroResult(BaseModel):
    """Replay of kept paths at one temperature."""

    temperature: float
    vocabulary: int
    tokens: int
    tokens_per_s: float
    bytes_per_token: float


def measure_replay(temperature: float) -> MicroResult:
    """Record paths of synthetic distributions, then replay them under the seeds that they were drawn with."""
    # SGLang turns temperature 0 into the most likely token at temperature 1.
    rule = (
        SamplingRule.of(temperature, 1 << 30, 1.0, 0.0) if temperature else SamplingRule.of(1.0, 1, 1.0, 0.0)
    )
    heads = _synthetic_heads(rule.temperature)
    trie = LogitsTrie(2**30)
    requests = [_recorded(trie, heads, rule, index) for index in range(PATHS)]
    tokens, best = 0, 0.0
    for _ in range(PASSES):
        tokens = 0
        started = time.perf_counter()
        for prompt, seed, length in requests:
            node = trie.find(PrefixHash("", prompt).digest())
            replay = Replay(node, Stepwise(rule, seed, len(prompt) - 1))
            replay.run(_until(length), PATH_TOKENS)
            trie.touch(replay.path or ())
            tokens += replay.tokens
        best = max(best, tokens / (time.perf_counter() - started))
    return MicroResult(
        temperature=temperature,
        vocabulary=VOCABULARY,
        tokens=tokens,
        tokens_per_s=best,
        bytes_per_token=trie.nbytes / len(trie),
    )


def _synthetic_heads(temperature: float) -> list[Head]:
    """The most likely tokens of made-up rows, with the normaliser of the whole row."""
    generator = np.random.default_rng(0)
    heads: list[Head] = []
    for _ in range(ROWS):
        ranks = generator.permutation(VOCABULARY) + 1
        row = (20.0 - DECAY * np.log(ranks) - generator.exponential(0.2, VOCABULARY)).astype(np.float32)
        # The upper half of a float32 is a bfloat16: what a model's own logits are.
        row = (row.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        ids = np.argpartition(row, -HEAD_SIZE)[-HEAD_SIZE:]
        weights = np.exp((row.astype(np.float64) - float(row.max())) / temperature)
        heads.append(Head.select(ids, row[ids], VOCABULARY, {temperature: float(weights.sum())}))
    return heads


def _recorded(
    trie: LogitsTrie, heads: list[Head], rule: SamplingRule, index: int
) -> tuple[list[int], int, int]:
    """Keep one path as the server would; returns its prompt, seed and length."""
    prompt, seed = [index, *range(64)], index
    output: list[int] = []
    rows: dict[int, bytes] = {}
    while len(output) < PATH_TOKENS:
        row = heads[(index + len(output)) % len(heads)].trimmed()
        token = draw(row, rule, uniform(seed, len(prompt) - 1 + len(output)))
        if token is None:
            # Outside the kept head: replay would end here, so the path does.
            break
        rows[len(output)] = pack(row)
        output.append(token)
    trie.insert("", prompt, output, rows)
    return prompt, seed, len(output)


def _until(length: int) -> Callable[[int, Node], Verdict]:
    """A request of ``length`` tokens: takes each, and says whether to continue."""
    taken = 0

    def take(_token: int, _node: Node) -> Verdict:
        nonlocal taken
        taken += 1
        return Verdict.CONTINUES if taken < length else Verdict.FINISHED

    return take
