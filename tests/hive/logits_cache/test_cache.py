"""Replay against a toy model: the cache must never change what a request would have got."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hive_frontend.wire import derive_seed
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hive.server.logits_cache.cache import MAX_PREFETCHED, CachedRequest, LogitsCache
from hive.server.logits_cache.head import Head
from hive.server.logits_cache.hotspot import HotspotRule
from hive.server.logits_cache.packing import pack
from hive.server.logits_cache.replay import Stop, Verdict
from hive.server.logits_cache.sampling import SamplingRule, draw_live, uniform
from hive.server.logits_cache.trie import Node
from tests.hive.logits_cache.truth import whole_head

VOCABULARY = 12
EOS = 0
ALL = 1 << 30


class ToyModel:
    """Logits are a pure function of the tokens so far; counts its forward passes."""

    def __init__(self, head_size: int) -> None:
        self.head_size = head_size
        self.passes = 0

    def row(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.passes += 1
        rng = np.random.default_rng(derive_seed(*tokens))
        return (rng.normal(size=VOCABULARY) * 2).astype(np.float32)

    def head(self, row: NDArray[np.float32], temperature: float) -> Head:
        whole = whole_head(row, temperature)
        picked = np.argsort(-row, kind="stable")[: self.head_size]
        return Head.select(picked.astype(np.int64), row[picked], whole.support, whole.normalisers)


def serve(
    model: ToyModel, cache: LogitsCache | None, prompt: list[int], rule: SamplingRule, seed: int, length: int
) -> tuple[list[int], int]:
    """What a server does with one request; its output, and how much of it was replayed."""
    output: list[int] = []

    def goes_on() -> bool:
        return output[-1] != EOS and len(output) < length

    def take(token: int, _node: Node) -> Verdict:
        output.append(token)
        return Verdict.CONTINUES if goes_on() else Verdict.FINISHED

    request = CachedRequest("m", rule, seed, prompt)
    replayed = 0
    if cache is not None:
        replay = cache.begin(request)
        while replay.stop is None:
            cache.run(replay, request, output, take, limit=3)
        cache.concluded(replay)
        replayed = replay.tokens
        if replay.stop is Stop.FINISHED:
            cache.depart(request, output, ended=True, replayed=replayed)
            return output, replayed
    going = True
    while going:
        row = model.row([*prompt, *output])
        head = model.head(row, rule.temperature)
        index = len(output)
        token = draw_live(head, lambda row=row: row, rule, uniform(seed, len(prompt) + index - 1))  # type: ignore[misc]
        output.append(token)
        going = goes_on()
        if cache is not None:
            cache.record(request, output, pack(head.trimmed(0.01)) if len(head.ids) else None)
    if cache is not None:
        cache.depart(request, output, ended=True, replayed=replayed)
    return output, replayed


requests = st.lists(
    st.tuples(
        st.sampled_from([[1], [1, 2], [3]]),
        st.sampled_from([0.3, 0.7, 1.0]),
        st.sampled_from([1, 4, ALL]),
        st.sampled_from([0.6, 1.0]),
        st.integers(0, 5),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(requests, st.sampled_from([2, 5, 12]), st.sampled_from([10**6, 15_000]))
def test_outputs_with_and_without_the_cache_are_the_same(
    traffic: list[tuple[list[int], float, int, float, int, int]], head_size: int, capacity: int
) -> None:
    cache = LogitsCache(capacity)
    for prompt, temperature, top_k, top_p, seed, length in traffic:
        rule = SamplingRule.of(temperature, top_k, top_p, 0.0)
        plain, _ = serve(ToyModel(head_size), None, prompt, rule, seed, length)
        cached, _ = serve(ToyModel(head_size), cache, prompt, rule, seed, length)
        assert cached == plain
        cache.trie.check_integrity()


def test_a_repeated_request_never_reaches_the_model() -> None:
    model, cache = ToyModel(VOCABULARY), LogitsCache(10**6)
    rule = SamplingRule.of(0.7, ALL, 1.0, 0.0)
    first, _ = serve(model, cache, [1, 2], rule, 3, 10)
    passes = model.passes
    again, replayed = serve(model, cache, [1, 2], rule, 3, 10)
    assert again == first
    assert replayed == len(first)
    assert model.passes == passes
    assert cache.statistics.served_whole == 1


def test_replay_crosses_into_branches_that_other_requests_explored() -> None:
    model, cache = ToyModel(VOCABULARY), LogitsCache(10**7)
    rule = SamplingRule.of(1.0, ALL, 1.0, 0.0)
    outputs = [serve(model, cache, [4], rule, seed, 12)[0] for seed in range(200)]
    known = {tuple(output[: i + 1]) for output in outputs for i in range(len(output))}
    fresh, replayed = serve(model, cache, [4], rule, 10**6, 12)
    longest = max(i + 1 for i in range(len(fresh)) if i == 0 or tuple(fresh[:i]) in known)
    assert replayed >= min(longest, len(fresh)) - 1
    assert replayed > 1


def test_a_flush_forgets_and_disowns_requests_in_flight() -> None:
    cache = LogitsCache(10**6)
    model = ToyModel(VOCABULARY)
    rule = SamplingRule.of(0.7, ALL, 1.0, 0.0)
    serve(model, cache, [1], rule, 1, 5)
    in_flight = CachedRequest("m", rule, 2, [9])
    cache.begin(in_flight)
    cache.record(in_flight, [5], pack(model.head(model.row([9]), rule.temperature)))
    cache.flush()
    cache.depart(in_flight, [5], ended=True, replayed=0)
    assert len(cache.trie) == 0
    assert cache.trie.nbytes == 0


def test_the_summary_counts_what_happened() -> None:
    cache = LogitsCache(10**6)
    rule = SamplingRule.of(0.7, ALL, 1.0, 0.0)
    first, _ = serve(ToyModel(VOCABULARY), cache, [1], rule, 1, 5)
    serve(ToyModel(VOCABULARY), cache, [1], rule, 1, 5)
    cache.bypass("logprobs")
    summary = cache.summary()
    assert summary["lookups"] == 2
    assert summary["hits"] == 1
    assert summary["tokens_replayed"] == len(first) == summary["tokens_recorded"]
    assert summary["stops"] == {"unknown": 1, "finished": 1}
    assert summary["bypassed"] == {"logprobs": 1}


def test_the_next_sample_of_a_state_is_replayed_ahead() -> None:
    cache, model = LogitsCache(10**7, replay_ahead=True), ToyModel(VOCABULARY)
    rule = SamplingRule.of(0.7, ALL, 1.0, 0.0)
    for seed in range(30):
        serve(model, cache, [4], rule, seed, 12)
    request = CachedRequest("m", rule, 30, [4], next_seed=31)
    replay = cache.begin(request)
    cache.run(replay, request, [], lambda token, node: Verdict.REFUSED, 1)
    cache.concluded(replay)
    cache.depart(request, [], ended=True, replayed=0)
    assert cache.prefetching
    while cache.prefetching:
        cache.prefetch(3)
        cache.check_integrity()
    assert cache.statistics.prefetched == 1
    output, _ = serve(model, cache, [4], rule, 31, 12)
    assert output == serve(ToyModel(VOCABULARY), None, [4], rule, 31, 12)[0]
    assert cache.statistics.prefetch_hits == 1
    assert cache.statistics.prefetch_hit_tokens > 0
    assert cache.summary()["prefetch_saved_seconds"] > 0
    cache.check_integrity()


def test_what_is_replayed_ahead_is_bounded_and_forgotten_with_the_rows() -> None:
    cache, model = LogitsCache(10**7, replay_ahead=True), ToyModel(VOCABULARY)
    rule = SamplingRule.of(0.7, ALL, 1.0, 0.0)
    serve(model, cache, [4], rule, 1, 12)
    for seed in range(MAX_PREFETCHED + 50):
        request = CachedRequest("m", rule, 0, [4], next_seed=10**6 + seed)
        cache.depart(request, [], ended=True, replayed=0)
    cache.prefetch(10**6)
    cache.check_integrity()
    cache.flush()
    assert not cache.prefetching
    cache.check_integrity()


def test_hotspots_are_resampled_and_how_far_they_stray_is_told() -> None:
    cache, model = LogitsCache(10**7), ToyModel(VOCABULARY)
    rule = SamplingRule.of(1.0, ALL, 1.0, 0.0)
    first, _ = serve(model, cache, [4], rule, 1, 12)

    def resample(seed: int, hotspot: HotspotRule) -> list[int]:
        output: list[int] = []

        def take(token: int, _node: Node) -> Verdict:
            output.append(token)
            return Verdict.CONTINUES

        request = CachedRequest("m", rule, seed, [4], policy="hotspot", hotspot=hotspot)
        replay = cache.begin(request)
        while replay.stop is None:
            cache.run(replay, request, output, take, limit=2)
        cache.concluded(replay)
        cache.depart(request, output, ended=True, replayed=len(output))
        return output

    outputs = [resample(seed, HotspotRule(top_k=1)) for seed in range(2, 30)]
    assert len({tuple(output) for output in outputs}) > 1, "the hotspot is drawn anew"
    assert sum(output[: len(first)] == first[: len(output)] for output in outputs) > 1, "the rest is kept"
    assert cache.summary()["hotspot_kl_nats"] > 0.0
    assert cache.summary()["policies"]["hotspot"] == 28


def test_a_hotspot_replay_keeps_no_token_that_its_rule_forbids() -> None:
    cache, model = LogitsCache(10**7), ToyModel(VOCABULARY)
    for seed in range(5):
        serve(model, cache, [4], SamplingRule.of(2.0, ALL, 1.0, 0.0), seed, 12)
    request = CachedRequest("m", SamplingRule.of(1.0, 1, 1.0, 0.0), 9, [4], policy="hotspot")
    greedy: list[int] = []
    replay = cache.begin(request)

    def take(token: int, node: Node) -> Verdict:
        assert token == node.head.ids[0]
        greedy.append(token)
        return Verdict.CONTINUES

    cache.run(replay, request, greedy, take, limit=100)
    assert greedy
