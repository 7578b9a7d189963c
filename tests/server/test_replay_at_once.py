"""The Logits Cache where many requests run at once, in float32 and as GPUs compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from statistics import mean

import httpx
import pytest

from hive.server.server_process import ServerProcess
from tests.server.replay_client import PROMPTS, SUBJECTS, Answer, Ask, ReplayClient, all_at_once

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def bfloat16_server(server: ServerProcess, launch_server: Callable[..., ServerProcess]) -> ServerProcess:
    """The default server, unless this CPU has it compute in float32."""
    default = httpx.get(f"{server.url}/server_info", trust_env=False).json()["dtype"]
    return server if default != "float32" else launch_server("--dtype", "bfloat16")


@pytest.fixture(scope="module", params=["exact_server", "bfloat16_server"], ids=["float32", "bfloat16"])
def busy(request: pytest.FixtureRequest) -> Iterator[ReplayClient]:
    """A client of each of two servers, with empty caches: the one that replay tests share, and one in what GPUs use."""
    client = ReplayClient(request.getfixturevalue(request.param).url)
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
