"""The Logits Cache where it is hardest: little memory, prefills in chunks, retractions, many requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from statistics import mean
from typing import Any

import pytest

from hive.server_process import ServerProcess
from tests.server.replay_client import PROMPTS, Answer, Ask, ReplayClient

pytestmark = pytest.mark.server

CAPACITY = 128 * 1024

SUBJECTS = ["sea", "sky", "moon", "city", "fox", "king", "clock", "bread"]


@pytest.fixture(scope="module")
def tight(launch_server: Callable[..., ServerProcess]) -> Iterator[ReplayClient]:
    """A server in float32 that retracts a request every few steps, and has room for little."""
    server = launch_server(
        *("--dtype", "float32", "--max-total-tokens", "512", "--chunked-prefill-size", "16"),
        *("--hive-logits-cache-bytes", str(CAPACITY)),
        environment={"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": "3"},
    )
    client = ReplayClient(server.url)
    yield client
    client.http.close()
    server.stop()


def all_at_once(client: ReplayClient, asks: Sequence[Ask], replay: str, at_once: int = 8) -> list[Answer]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda ask: client.generate(ask, replay), asks))


def test_prompts_in_chunks_are_exact(tight: ReplayClient) -> None:
    long = " ".join(f"The {subject} is old, and the {subject} is wise." for subject in SUBJECTS)
    for seed in (1, 2):
        ask = Ask(long, {"sampling_seed": seed, "max_new_tokens": 8, "ignore_eos": True})
        plain = tight.generate(ask, "off")
        first, again = (tight.generate(ask) for _ in range(2))
        first.assert_same(plain)
        again.assert_same(plain)
        assert again.replayed == 8


FEATURES: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"min_new_tokens": 16},
    {"regex": "([a-z]{1,6} ){4,9}"},
    {"top_p": 0.9, "logit_bias": {"260": 3}},
]


def test_retracted_requests_are_exact(tight: ReplayClient) -> None:
    asks = [
        Ask(
            f"A song about the {subject}:",
            {"sampling_seed": 3, "max_new_tokens": 16, **features},
        )
        for subject, features in zip(SUBJECTS, FEATURES, strict=False)
    ]
    plain = [tight.generate(ask, "off") for ask in asks]
    retractions = 0
    for replay in ("off", "stepwise", "stepwise"):
        answers = all_at_once(tight, asks, replay)
        for one, other in zip(answers, plain, strict=True):
            one.assert_same(other)
        retractions += sum(answer.retractions for answer in answers)
    assert retractions > 0
    assert [answer.replayed for answer in answers] == [len(answer.ids) for answer in answers]


def test_evicted_states_are_generated_again(tight: ReplayClient) -> None:
    ask = Ask("The last line of", {"sampling_seed": 1, "max_new_tokens": 10, "ignore_eos": True})
    known = tight.generate(ask)
    assert tight.generate(ask).replayed == 10
    before = tight.cache()["evicted_nodes"]
    # Rows of a hot distribution are large.
    params = {"max_new_tokens": 10, "temperature": 2.0, "ignore_eos": True}
    all_at_once(tight, [Ask(f"Line {number} of", params) for number in range(16)], "stepwise")
    counts = tight.cache()
    assert counts["evicted_nodes"] > before
    assert counts["bytes"] <= CAPACITY
    after, again = (tight.generate(ask) for _ in range(2))
    after.assert_same(known)
    again.assert_same(known)
    assert (after.replayed, again.replayed) == (0, 10)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def busy(request: pytest.FixtureRequest) -> Iterator[ReplayClient]:
    """A client of each of the two servers, with empty caches."""
    name = {"float32": "exact_server", "bfloat16": "server"}[request.param]
    client = ReplayClient(request.getfixturevalue(name).url)
    client.flush()
    yield client
    client.http.close()


def test_eight_at_once_replay_what_was_recorded(busy: ReplayClient) -> None:
    params = {"max_new_tokens": 10, "ignore_eos": True}
    fields = {"return_logprob": True, "top_logprobs_num": 3}
    asks = [
        Ask(f"A story about the {subject}:", {**params, "sampling_seed": seed}, fields)
        for seed, subject in enumerate(SUBJECTS)
    ]
    recorded, replayed = (all_at_once(busy, asks, "stepwise") for _ in range(2))
    assert sum(answer.replayed for answer in replayed) > 40
    for then, now in zip(recorded, replayed, strict=True):
        known = now.replayed
        assert now.ids[:known] == then.ids[:known]
        now.assert_same_logprobs(then, known)


def test_eight_at_once_differ_no_more_often_with_the_cache(busy: ReplayClient) -> None:
    params = {"max_new_tokens": 8, "ignore_eos": True}
    asks = [Ask(PROMPTS[i % 2], {**params, "sampling_seed": i}) for i in range(8)]
    others = [Ask(PROMPTS[i % 2], {**params, "sampling_seed": 8 + i}) for i in range(8)]
    # Who shares a batch with whom is chance, and decides how sums are rounded.
    plain = [all_at_once(busy, asks, "off", at_once) for at_once in (8, 4, 1)]
    # Replay then meets rows that others recorded.
    all_at_once(busy, others, "stepwise")
    cached = [all_at_once(busy, asks, "stepwise") for _ in range(2)]
    by_chance = mean(differing(one, other) for one, other in combinations(plain, 2))
    for answers in cached:
        assert mean(differing(answers, other) for other in plain) <= by_chance + 1
    assert sum(answer.replayed for answer in cached[1]) > 0


def differing(one: Sequence[Answer], other: Sequence[Answer]) -> int:
    return sum(left.ids != right.ids for left, right in zip(one, other, strict=True))
