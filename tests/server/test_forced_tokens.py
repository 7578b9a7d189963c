"""Answers whose end a grammar dictates: the same as with every token drawn, in fewer steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.replay_client import ReplayClient

pytestmark = pytest.mark.server

PROMPT = "Is it sure, likely or impossible? It is"
WORDS = {"regex": " (sure|likely|impossible)", "temperature": 1.0, "max_new_tokens": 12}
STEP = {"regex": " (7 [-+*/] 13|13 [-/] 7) =", "temperature": 1.0, "max_new_tokens": 16}
CASES: list[dict[str, Any]] = [
    WORDS,
    STEP,
    {**STEP, "stop": [" ="]},
    {**STEP, "stop": ["13"]},
    # The end of the grammar lies behind the limit.
    {**STEP, "max_new_tokens": 4},
    {**STEP, "ignore_eos": True, "max_new_tokens": 6},
    {
        "json_schema": json.dumps(
            {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        )
    }
    | {"temperature": 1.0, "max_new_tokens": 24},
]


def said(answer: dict[str, Any]) -> tuple[Any, ...]:
    return answer["text"], answer["output_ids"], answer["meta_info"]["finish_reason"]


def steps(client: ReplayClient) -> dict[str, int]:
    counters: dict[str, int] = client.http.get("/hive/stats").json()["scheduler"]
    return counters


def draw(
    client: ReplayClient, params: dict[str, Any], seed: int, replay: str, **fields: Any
) -> dict[str, Any]:
    params = {**params, "sampling_seed": seed, "custom_params": {"hive": {"replay": replay}}}
    answer: dict[str, Any] = client.post("/generate", {"text": PROMPT, "sampling_params": params, **fields})
    return answer


@pytest.mark.parametrize("params", CASES, ids=range(len(CASES)))
def test_answers_are_the_same_as_with_every_token_drawn(exact: ReplayClient, params: dict[str, Any]) -> None:
    exact.flush()
    for seed in range(6):
        drawn = draw(exact, params, seed, "off")
        first, again = (draw(exact, params, seed, "stepwise") for _ in range(2))
        assert said(first) == said(again) == said(drawn)
        counted = again["meta_info"]["hive"]
        assert counted["tokens_replayed"] + counted["tokens_generated"] == len(again["output_ids"])


def test_they_take_fewer_steps(exact: ReplayClient) -> None:
    exact.flush()
    passes = {}
    for replay in ("off", "stepwise"):
        before = steps(exact)
        for seed in range(20, 26):
            # A prompt of its own, so that nothing is replayed.
            draw(exact, WORDS, seed, replay, text=f"{seed}: {PROMPT}")
        after = steps(exact)
        passes[replay] = after["decode_steps"] - before["decode_steps"]
        forced = after["forced_tokens"] - before["forced_tokens"]
        assert forced == 0 if replay == "off" else forced >= 6
    assert passes["stepwise"] <= passes["off"] - 6


def test_streams_and_requests_for_log_probabilities(exact: ReplayClient) -> None:
    drawn = draw(exact, WORDS, 40, "off", return_logprob=True)
    told = draw(exact, WORDS, 40, "stepwise", return_logprob=True)
    assert said(told) == said(drawn)
    assert len(told["meta_info"]["output_token_logprobs"]) == len(told["output_ids"])
    # The rows of forced tokens are recorded like those of drawn ones, so log-probabilities can be replayed.
    draw(exact, WORDS, 41, "stepwise")
    told = draw(exact, WORDS, 41, "stepwise", return_logprob=True)
    assert told["meta_info"]["hive"]["tokens_generated"] == 0
    assert told["meta_info"]["output_token_logprobs"][-1][0] == 0.0
    params = {**WORDS, "sampling_seed": 40, "custom_params": {"hive": {"agent": "streamed"}}}
    body = {"text": PROMPT, "sampling_params": params, "samples": [{}], "stream": True}
    with exact.http.stream("POST", "/hive/generate", json=body) as answer:
        last = [json.loads(line) for line in answer.iter_lines()][-1]
    assert said(last) == said(drawn)


def test_nothing_is_left_behind(exact: ReplayClient) -> None:
    assert exact.post("/hive/check", {})["problems"] == []
