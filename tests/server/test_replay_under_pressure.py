"""The Logits Cache where it is hardest: little memory, prefills in chunks, retractions, many requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hive.server.server_process import ServerProcess
from tests.repetitions import LAYERS_FLAGS
from tests.server.replay_client import SUBJECTS, Ask, ReplayClient, all_at_once

pytestmark = pytest.mark.server

CAPACITY = 128 * 1024


@pytest.fixture(scope="module")
def tight(launch_server: Callable[..., ServerProcess]) -> Iterator[ReplayClient]:
    """A server of its own, in float32: it retracts a request every few steps, and has room for little."""
    server = launch_server(
        *("--dtype", "float32", "--max-total-tokens", "512", "--chunked-prefill-size", "16"),
        *("--hive-logits-cache-bytes", str(CAPACITY)),
        *LAYERS_FLAGS,
        environment={"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": "3"},
    )
    client = ReplayClient(server.url)
    yield client
    client.http.close()
    server.stop()


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
