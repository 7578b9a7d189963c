"""Samples of a state that are asked for at once: on the real server, in float32."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.server.replay_client import Answer, Ask, ReplayClient

pytestmark = pytest.mark.server

SAMPLES = 8
TOKENS = 40
"""Long enough that requests of threads that a busy machine starts late still find the others running."""


def asks(temperature: float, prompt: str) -> list[Ask]:
    return [
        Ask(prompt, {"temperature": temperature, "max_new_tokens": TOKENS, "sampling_seed": seed})
        for seed in range(SAMPLES)
    ]


def at_once(exact: ReplayClient, some: list[Ask]) -> list[Answer]:
    together = Barrier(len(some))

    def one(ask: Ask) -> Answer:
        together.wait()
        return exact.generate(ask)

    with ThreadPoolExecutor(len(some)) as threads:
        return list(threads.map(one, some))


@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.8])
def test_they_share_what_is_computed_and_get_what_they_would_get_alone(
    exact: ReplayClient, temperature: float
) -> None:
    some = asks(temperature, f"At {temperature} degrees, the capital of Norway is")
    alone = [exact.generate(ask, "off") for ask in some]
    before = exact.cache()
    answers = at_once(exact, some)
    assert [answer.ids for answer in answers] == [answer.ids for answer in alone]
    after = exact.cache()
    states = {tuple(answer.ids[:length]) for answer in answers for length in range(len(answer.ids))}
    assert after["tokens_recorded"] - before["tokens_recorded"] == len(states)
    assert sum(answer.replayed for answer in answers) == sum(len(a.ids) for a in answers) - len(states)
    assert after["coalesced"] > before["coalesced"]


def test_who_parts_from_another_needs_no_prompt_of_its_own(exact: ReplayClient) -> None:
    """The model computes the prompt once, and no token again that it has computed for a request that still runs."""
    some = asks(0.6, "Half past ten, the train to Trondheim")
    alone = [exact.generate(ask, "off") for ask in some]
    exact.flush()
    before = exact.http.get("/hive/stats").json()
    params = {"temperature": 0.6, "max_new_tokens": TOKENS}
    samples = [{"sampling_seed": seed} for seed in range(SAMPLES)]
    body = {"text": some[0].prompt, "sampling_params": params, "samples": samples}
    answer = exact.http.post("/hive/generate", json=body)
    lines = {line["index"]: line for line in map(json.loads, answer.text.splitlines())}
    assert [lines[index]["output_ids"] for index in range(SAMPLES)] == [answer.ids for answer in alone]
    after = exact.http.get("/hive/stats").json()
    assert after["scheduler"]["extends"] - before["scheduler"]["extends"] == 1
    assert after["scheduler"]["decode_steps"] - before["scheduler"]["decode_steps"] <= TOKENS + SAMPLES
    assert after["logits_cache"]["shared_prefix"] > before["logits_cache"]["shared_prefix"]
    assert exact.post("/hive/check", {})["problems"] == []


def test_who_follows_one_that_is_aborted_goes_on_alone(exact: ReplayClient) -> None:
    ask = asks(0.0, "A long story about a lighthouse:")[0]
    long = Ask(ask.prompt, {**ask.params, "max_new_tokens": 400})
    with exact.stream("/generate", {**long.body("stepwise"), "stream": True}) as chunks:
        next(chunks)
        with ThreadPoolExecutor(1) as threads:
            follower = threads.submit(exact.generate, Ask(ask.prompt, {**ask.params, "max_new_tokens": 60}))
            next(chunks)
    # The stream is closed: the server aborts what it was written by.
    assert follower.result().ids[:TOKENS] == exact.generate(ask, "off").ids
    exact.wait_for("replaying", 0, 0)
