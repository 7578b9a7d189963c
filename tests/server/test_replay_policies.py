"""How replay draws is a policy of the request: what each one promises, over HTTP and on the real model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from hive.server.server_process import ServerProcess
from tests.server.replay_client import PROMPTS, Answer, Ask, ReplayClient

pytestmark = pytest.mark.server


def log_probabilities(exact: ReplayClient, ask: Ask, outputs: Sequence[list[int]]) -> list[float]:
    """Of whole outputs under a request's temperature, asked of the model token by token."""
    prompt = ask.prompt if isinstance(ask.prompt, list) else exact.tokens(ask.prompt)
    states = sorted({tuple(output[:i]) for output in outputs for i in range(len(output))})
    following = [
        sorted(
            {
                output[len(state)]
                for output in outputs
                if tuple(output[: len(state)]) == state and len(output) > len(state)
            }
        )
        for state in states
    ]
    body = {
        "input_ids": [prompt + list(state) for state in states],
        "sampling_params": {
            "max_new_tokens": 1,
            "temperature": ask.params["temperature"],
            "custom_params": {"hive": {"replay": "off"}},
        },
        "return_logprob": True,
        "token_ids_logprob": following,
    }
    answers = exact.post("/generate", body)
    known = {
        (state, entry[1]): entry[0]
        for state, answer in zip(states, answers, strict=True)
        for entry in answer["meta_info"]["output_token_ids_logprobs"][0]
    }
    return [sum(known[tuple(output[:i]), token] for i, token in enumerate(output)) for output in outputs]


@pytest.mark.parametrize("at_once", [1, 6])
def test_distinct_samples_are_distinct_and_say_how_likely_they_are(exact: ReplayClient, at_once: int) -> None:
    asks = [
        Ask(
            PROMPTS[0],
            {"sampling_seed": 1, "max_new_tokens": 3, "temperature": 0.7},
            tag={"tenant": f"distinct-{at_once}", "sample": sample},
        )
        for sample in range(12)
    ]
    with ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(lambda ask: exact.generate(ask, "distinct"), asks))
    outputs = [answer.ids for answer in answers]
    assert len(set(map(tuple, outputs))) == 12
    expected = log_probabilities(exact, asks[0], outputs)
    for answer, log_probability in zip(answers, expected, strict=True):
        assert answer.hive["repeats"] is False
        assert answer.hive["log_probability"] <= 0
        assert answer.hive["log_probability"] == pytest.approx(log_probability, abs=1e-3)
    assert sum(answer.replayed for answer in answers) > 0


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_distinct_samples_at_once_are_those_drawn_one_after_the_other(
    exact: ReplayClient, temperature: float
) -> None:
    def ask(order: str, sample: int) -> Ask:
        params = {"sampling_seed": 5, "max_new_tokens": 12, "temperature": temperature}
        return Ask(PROMPTS[1], params, tag={"tenant": f"{order}-{temperature}", "sample": sample})

    one_by_one = [exact.generate(ask("one-by-one", sample), "distinct") for sample in range(8)]
    together = [ask("together", sample).body("distinct") for sample in range(8)]
    body = {key: [each[key] for each in together] for key in ("text", "sampling_params")}
    at_once = [Answer(answer) for answer in exact.post("/generate", body)]
    assert len({tuple(answer.ids) for answer in at_once}) == 8
    for alone, beside in zip(one_by_one, at_once, strict=True):
        beside.assert_same(alone)
        assert beside.hive["log_probability"] == pytest.approx(alone.hive["log_probability"], abs=1e-3)


@pytest.mark.parametrize("stream", [False, True])
def test_distinct_samples_of_a_state_that_is_used_up_repeat(exact: ReplayClient, stream: bool) -> None:
    ask = Ask(
        PROMPTS[2],
        {"sampling_seed": 1, "temperature": 1.0, "regex": "[abc]", "max_new_tokens": 4},
        {"stream": stream},
        {"tenant": f"used-up-{stream}"},
    )
    asks = [replace(ask, tag={**ask.tag, "sample": sample}) for sample in range(5)]
    answers = [exact.generate(ask, "distinct") for ask in asks]
    assert sorted(answer.text for answer in answers[:3]) == ["a", "b", "c"]
    assert [answer.hive["repeats"] for answer in answers] == [False] * 3 + [True] * 2
    assert sum(math.exp(answer.hive["log_probability"]) for answer in answers[:3]) == pytest.approx(
        1, abs=1e-3
    )
    assert {answer.text for answer in answers[3:]} <= {"a", "b", "c"}


def test_many_distinct_samples_are_answered_by_the_cache_one_after_the_other(
    exact: ReplayClient,
) -> None:
    params = Ask("", {"sampling_seed": 1, "temperature": 1.0, "regex": "[ab]"}).body("distinct")[
        "sampling_params"
    ]
    answers = exact.post("/generate", {"text": ["Yes or no? ("] * 300, "sampling_params": params})
    new = [answer["text"] for answer in answers if not answer["meta_info"]["hive"]["repeats"]]
    assert sorted(new) == ["a", "b"]
    assert len(answers) == 300


def test_the_first_distinct_sample_is_an_ordinary_one(exact: ReplayClient) -> None:
    for seed in range(3):
        ask = Ask(PROMPTS[1], {"sampling_seed": seed, "max_new_tokens": 6}, tag={"tenant": f"first-{seed}"})
        exact.generate(ask, "distinct").assert_same(exact.generate(ask, "off"))


def test_a_distinct_sample_that_is_aborted_blocks_nobody(exact: ReplayClient) -> None:
    # Nearly certain tokens: all of them may be used up, for all that a later sample knows.
    params = {"sampling_seed": 1, "max_new_tokens": 100, "ignore_eos": True, "temperature": 0.05}
    ask = Ask("A state whose samples are aborted", params)
    body = {**ask.body("distinct"), "stream": True}
    with exact.stream("/generate", body) as chunks:
        next(chunks)
        # A second one has to wait for the first, and is given up.
        with pytest.raises(httpx.ReadTimeout):
            exact.http.post("/generate", json=ask.body("distinct"), timeout=0.4)
        assert len(next(chunks)["output_ids"]) < 100
    assert exact.wait_for("waiting", 0, 0)["replaying"] == 0
    outputs = [exact.generate(replace(ask, tag={"sample": sample}), "distinct") for sample in range(2)]
    assert outputs[0].ids != outputs[1].ids
    assert outputs[0].hive["repeats"] is False


def test_a_distinct_sample_goes_on_when_the_first_is_aborted(exact: ReplayClient) -> None:
    ask = Ask(
        "A state whose first sample is aborted",
        {"sampling_seed": 1, "max_new_tokens": 60, "ignore_eos": True, "temperature": 0.05},
    )
    with ThreadPoolExecutor() as pool:
        with exact.stream("/generate", {**ask.body("distinct"), "stream": True}) as chunks:
            next(chunks)
            waiting = pool.submit(exact.generate, ask, "distinct")
            exact.wait_for("waiting", 1)
        # Nothing was used up: it is the state's first sample.
        waiting.result().assert_same(exact.generate(ask, "off"))


def hotspot_outputs(
    client: ReplayClient, name: str, replay: str, **tag: float
) -> tuple[Answer, list[Answer]]:
    """A cached output, and what other seeds make of it; each in a cache of its own."""
    ask = Ask(PROMPTS[0], {"max_new_tokens": 8, "temperature": 0.8, "ignore_eos": True})
    answers = []
    for seed in (3, 4, 6):
        tenant = {"tenant": f"{name}-{seed}"}
        cached = client.generate(replace(ask, params={**ask.params, "sampling_seed": 1}, tag=tenant))
        params = {**ask.params, "sampling_seed": seed}
        answers.append(client.generate(replace(ask, params=params, tag={**tenant, **tag}), replay))
    return cached, answers


def differs_at(answer: Answer, cached: Answer) -> int:
    """The first token that is another one; the length if none is."""
    pairs = zip(answer.ids, cached.ids, strict=True)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), len(cached.ids))


def test_hotspot_keeps_the_cached_output_outside_of_hotspots(roles_server: ServerProcess) -> None:
    # Hotspots are where the whole model is in doubt; few layers are always in doubt, or never.
    client = ReplayClient(roles_server.url)
    cached, hotspot = hotspot_outputs(client, "hotspot", "hotspot")
    _, single = hotspot_outputs(client, "single", "hotspot", hotspot_top_k=1)
    _, stepwise = hotspot_outputs(client, "stepwise", "stepwise")
    client.http.close()
    for answers in (hotspot, single, stepwise):
        for answer in answers:
            # Replay takes one token beyond the cached output, or all of it.
            assert answer.replayed == min(differs_at(answer, cached) + 1, 8)
    for one, few, every in zip(single, hotspot, stepwise, strict=True):
        assert one.replayed >= few.replayed >= every.replayed
    assert sum(answer.replayed for answer in hotspot) > sum(answer.replayed for answer in stepwise)
    # One step may change, and it is the same one whatever the seed.
    changed = {differs_at(answer, cached) for answer in single} - {8}
    assert len(changed) == 1


def test_prefetched_samples_are_those_the_model_draws(exact: ReplayClient) -> None:
    def ask(sample: int) -> Ask:
        tag = {"session": "ahead", "state": "root", "sample": sample}
        return Ask(PROMPTS[0], {"max_new_tokens": 8, "temperature": 0.3}, tag=tag)

    plain = [exact.generate(ask(sample), "off") for sample in range(5)]
    before = exact.cache()
    for sample in range(5):
        counts = exact.cache()
        exact.generate(ask(sample)).assert_same(plain[sample])
        # When it is over, the next one is replayed ahead.
        exact.wait_for("prefetched", counts["prefetched"] + 1)
    after = exact.cache()
    assert after["prefetch_hits"] == before["prefetch_hits"] + 4
    assert after["prefetched_tokens"] > before["prefetched_tokens"]
    # A second request for the same sample finds nothing ahead, and replays.
    again = exact.generate(ask(1))
    again.assert_same(plain[1])
    assert again.replayed == len(plain[1].ids)
    assert exact.cache()["prefetch_hits"] == after["prefetch_hits"]


def test_a_long_replay_goes_on_beside_a_decode(exact: ReplayClient) -> None:
    known = Ask(
        "Say it again:",
        {"sampling_seed": 1, "temperature": 0.3, "max_new_tokens": 150, "ignore_eos": True},
        {"stream": True},
    )
    other = Ask(PROMPTS[1], {"sampling_seed": 9, "max_new_tokens": 60, "ignore_eos": True}, {"stream": True})
    plain = exact.generate(other, "off")
    first = exact.generate(known)
    with ThreadPoolExecutor() as pool, exact.stream("/generate", other.body("off")) as chunks:
        next(chunks)
        again = pool.submit(exact.generate, known).result()
        rest = [chunk["output_ids"] for chunk in chunks]
    again.assert_same(first)
    assert again.replayed == 150
    # It was over long before the decode was, which went on.
    assert len(rest) > 10
    assert rest[-1] == plain.ids
