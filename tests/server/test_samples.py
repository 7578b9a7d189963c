"""``/hive/generate``: many samples of one prompt in one request are what each would have been alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from hive.server.server_process import slowdown
from tests.server.replay_client import ReplayClient

pytestmark = pytest.mark.server

PROMPT = "The three most important things in life are"
DIALOGUE = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Name a fruit, and say why it is odd."},
]
LONG = {"max_new_tokens": 1500, "ignore_eos": True}


@contextmanager
def asking(client: ReplayClient, body: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    with client.http.stream("POST", "/hive/generate", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "application/x-ndjson"
        yield (json.loads(line) for line in answer.iter_lines())


def ask(client: ReplayClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    with asking(client, body) as lines:
        return list(lines)


def alone(client: ReplayClient, body: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    """The answer of ``/generate`` to one sample."""
    fields = {name: value for name, value in body.items() if name not in ("samples", "stream")}
    params = dict(fields.get("sampling_params") or {})
    custom = params.get("custom_params") or {}
    if "sampling_seed" in sample:
        params["sampling_seed"] = sample["sampling_seed"]
    params["custom_params"] = {
        **custom,
        "hive": {**custom.get("hive", {}), **sample.get("hive", {}), "replay": "off"},
    }
    return client.post("/generate", {**fields, "sampling_params": params})  # type: ignore[no-any-return]


def said(answer: dict[str, Any]) -> tuple[Any, ...]:
    return answer["text"], answer["output_ids"], answer["meta_info"]["finish_reason"]


SEEDED = [
    {"sampling_seed": 11},
    {"sampling_seed": 12},
    {"sampling_seed": 12},
    {"sampling_seed": 11, "hive": {"sample": 3}},
    {"hive": {"state": "s", "sample": 4}},
    {"sampling_seed": 5, "hive": {"agent": "another"}},
]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.9, "max_new_tokens": 12},
        {"temperature": 0.0, "max_new_tokens": 6},
        {"temperature": 1.2, "max_new_tokens": 12, "top_k": 20, "stop": [" of", " the"]},
        {"temperature": 1.0, "max_new_tokens": 8, "regex": "[a-c]{2,6}"},
        {"temperature": 0.8, "max_new_tokens": 9, "frequency_penalty": 0.5, "logit_bias": {"260": -3.0}},
    ],
    ids=["plain", "greedy", "stops", "regex", "penalties"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_samples_are_what_each_is_alone(exact: ReplayClient, params: dict[str, Any], stream: bool) -> None:
    shared = {**params, "custom_params": {"hive": {"agent": "samples", "session": "together"}}}
    body = {"text": PROMPT, "sampling_params": shared, "samples": SEEDED, "stream": stream}
    exact.flush()
    last: dict[int, dict[str, Any]] = {}
    for line in ask(exact, body):
        before = last.get(line["index"], {}).get("output_ids", [])
        assert line["output_ids"][: len(before)] == before, "a stream takes tokens back"
        last[line["index"]] = line
    for index, sample in enumerate(SEEDED):
        assert said(last[index]) == said(alone(exact, body, sample)), sample
        told = last[index]["meta_info"]["hive"]
        assert told["agent"] == sample.get("hive", {}).get("agent", "samples")  # type: ignore[attr-defined]
        assert told["tokens_generated"] + told["tokens_replayed"] == len(last[index]["output_ids"])
    # Now it is known, but for draws that the kept part of a row does not decide.
    again = sorted(ask(exact, {**body, "stream": False}), key=lambda line: line["index"])
    assert [said(line) for line in again] == [said(last[index]) for index in range(len(SEEDED))]
    assert all(line["meta_info"]["hive"]["tokens_replayed"] for line in again)


def test_messages_are_rendered_within(exact: ReplayClient) -> None:
    first = exact.post("/hive/render", {"messages": DIALOGUE})
    prompt = first["ids"]
    params = {**first["sampling_params"], "temperature": 0.9, "max_new_tokens": 10, "sampling_seed": 3}
    spoken = exact.post("/generate", {"input_ids": prompt, "sampling_params": params})
    dialogue = [
        *DIALOGUE,
        {"role": "assistant", "content": spoken["text"]},
        {"role": "user", "content": "And a vegetable?"},
    ]
    prefix = [*prompt, *spoken["output_ids"]]
    rendered = exact.post("/hive/render", {"messages": dialogue, "prefix_ids": prefix})
    assert rendered["kept"] >= len(prompt)
    asked = {
        "messages": dialogue,
        "prefix_ids": prefix,
        "samples": [{"sampling_seed": 8}, {"sampling_seed": 9}],
    }
    told, *answers = ask(exact, {**asked, "sampling_params": {"max_new_tokens": 8, "stop": "xyz"}})
    assert told == {"prompt": {"call": 0, "kept": rendered["kept"], "ids": rendered["ids"]}}
    body = {
        "input_ids": prefix[: rendered["kept"]] + rendered["ids"],
        "sampling_params": {**rendered["sampling_params"], "max_new_tokens": 8},
    }
    for answer in answers:
        assert said(answer) == said(alone(exact, body, asked["samples"][answer["index"]]))  # type: ignore[index]
    stops = rendered["sampling_params"].get("stop", [])
    # A stop of the request's own is one more.
    word = answers[0]["text"].split()[0]
    params = {"max_new_tokens": 8, "stop": word}
    _, stopped = ask(
        exact, {**asked, "samples": [asked["samples"][answers[0]["index"]]], "sampling_params": params}
    )  # type: ignore[index]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": word}, stops


def test_calls_of_a_list_are_what_each_is_alone(exact: ReplayClient) -> None:
    exact.flush()
    spoken = {
        "messages": DIALOGUE,
        "sampling_params": {"temperature": 0.9, "max_new_tokens": 7},
        "samples": [{"sampling_seed": 3}, {"sampling_seed": 4}],
    }
    calls = [
        {"text": PROMPT, "sampling_params": {"max_new_tokens": 6, "temperature": 1.0}, "samples": SEEDED[:2]},
        spoken,
        {
            "text": "Numbers:",
            "sampling_params": {"max_new_tokens": 5, "temperature": 0.8, "regex": "[0-9 ]{4}"},
            "samples": [{"sampling_seed": 9, "hive": {"agent": "counter"}}],
            "stream": True,
        },
    ]
    lines = ask(exact, {"calls": calls})
    rendered = exact.post("/hive/render", {"messages": DIALOGUE})
    assert lines[0] == {"prompt": {"call": 1, "kept": 0, "ids": rendered["ids"]}}
    last = {line["index"]: line for line in lines[1:]}
    params = {**rendered["sampling_params"], **spoken["sampling_params"]}  # type: ignore[dict-item]
    calls[1] = {"input_ids": rendered["ids"], "sampling_params": params, "samples": spoken["samples"]}
    each = [(call, sample) for call in calls for sample in call["samples"]]  # type: ignore[attr-defined]
    assert sorted(last) == list(range(len(each)))
    for index, (call, sample) in enumerate(each):
        # A whole prefill again: behind a cached prefix, rounding differs.
        exact.flush()
        assert said(last[index]) == said(alone(exact, call, sample)), index
    assert last[4]["meta_info"]["hive"]["agent"] == "counter"
    # The streamed call sent pieces, the others one line each.
    assert sum(line.get("index") == 4 for line in lines) > 1
    assert sum("index" in line and line["index"] < 4 for line in lines) == 4


def test_an_answer_does_not_wait_for_the_others(exact: ReplayClient) -> None:
    samples = [{"sampling_seed": 1}, {"sampling_seed": 2}]
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 3}, "samples": samples}
    ask(exact, body)
    body["samples"] = [{"hive": {"replay": "off"}}, *samples]
    body["sampling_params"] = {"max_new_tokens": 3, "temperature": 1.0}
    order = [line["index"] for line in ask(exact, body)]
    assert order == [1, 2, 0]


def test_distinct_samples_are_distinct(exact: ReplayClient) -> None:
    params = {"max_new_tokens": 2, "temperature": 0.5, "custom_params": {"hive": {"replay": "distinct"}}}
    samples = [{"sampling_seed": seed, "hive": {"scope": "samples"}} for seed in range(8)]
    lines = ask(exact, {"text": PROMPT, "sampling_params": params, "samples": samples})
    assert len({tuple(line["output_ids"]) for line in lines}) == len(lines) == 8
    assert all(line["meta_info"]["hive"]["log_probability"] < 0 for line in lines)


def test_one_of_them_is_aborted(exact: ReplayClient) -> None:
    samples = [{"rid": f"samples-abort-{index}", "sampling_seed": index} for index in range(3)]
    body = {"text": PROMPT, "sampling_params": LONG, "samples": samples, "stream": True}
    last: dict[int, dict[str, Any]] = {}
    with asking(exact, body) as lines:
        for line in lines:
            if not last:
                for rid in ("samples-abort-1", "samples-abort-1", "samples-abort-0"):
                    assert exact.http.delete(f"/hive/requests/{rid}").status_code == 200
            last[line["index"]] = line
            reason = line["meta_info"]["finish_reason"]
            if (
                reason is not None
                and sum(x["meta_info"]["finish_reason"] is not None for x in last.values()) == 2
            ):
                exact.http.delete("/hive/requests/samples-abort-2")
    assert {line["meta_info"]["finish_reason"]["type"] for line in last.values()} == {"abort"}
    assert len(last[2]["output_ids"]) >= len(last[1]["output_ids"]) > 0
    assert exact.http.delete("/hive/requests/samples-abort-1").json() == {
        "rid": "samples-abort-1",
        "known": False,
    }


def test_a_tenants_request_is_not_anothers_to_abort(exact: ReplayClient) -> None:
    body = {"text": PROMPT, "sampling_params": LONG, "samples": [{"rid": "of-red"}], "stream": True}
    headers = {"x-hive-tenant": "red"}
    with exact.http.stream("POST", "/hive/generate", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        next(lines)
        for other, known in (({"x-hive-tenant": "blue"}, False), (headers, True)):
            assert exact.http.delete("/hive/requests/of-red", headers=other).json()["known"] is known
        assert json.loads(list(lines)[-1])["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_what_is_left(exact: ReplayClient, stream: bool) -> None:
    def running() -> int:
        return int(sum(load["num_running_reqs"] for load in exact.http.get("/v1/loads").json()["loads"]))

    samples = [{"sampling_seed": index, "rid": f"gone-{stream}-{index}"} for index in range(4)]
    params = {**LONG, "custom_params": {"hive": {"replay": "off"}}}
    body = {"text": PROMPT, "sampling_params": params, "samples": samples, "stream": stream}
    with httpx.Client(base_url=exact.http.base_url, headers=exact.http.headers, trust_env=False) as going:
        if stream:
            with going.stream("POST", "/hive/generate", json=body) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                going.post("/hive/generate", json=body, timeout=2)
    end = time.monotonic() + 20 * slowdown()
    while running():
        assert time.monotonic() < end, "samples run on for nobody"
        time.sleep(0.05)
    # Their ids are free again.
    assert len(ask(exact, {**body, "stream": False, "sampling_params": {"max_new_tokens": 1}})) == 4


SAMPLE: dict[str, Any] = {}
GOOD = {"text": "Hi", "sampling_params": {"max_new_tokens": 1}, "samples": [SAMPLE]}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"text": None}, "messages"),
        ({"input_ids": [1]}, "messages"),
        ({"text": ""}, "text"),
        ({"text": None, "input_ids": [-1]}, "input_ids[0]"),
        ({"text": None, "messages": [{"role": "x", "content": ""}]}, "messages[0].role"),
        ({"prefix_ids": [1]}, "prefix_ids"),
        ({"text": None, "messages": DIALOGUE, "prefix_ids": ["a"]}, "prefix_ids[0]"),
        ({"samples": None}, "samples"),
        ({"samples": []}, "samples"),
        ({"samples": [SAMPLE] * 257}, "samples"),
        ({"samples": [SAMPLE, 3]}, "samples[1]"),
        ({"samples": [{"seed": 1}]}, "samples[0].seed"),
        ({"samples": [{"sampling_seed": -1}]}, "samples[0].sampling_seed"),
        ({"samples": [SAMPLE, {"hive": {"agent": "a b"}}]}, "samples[1].hive.agent"),
        ({"samples": [{"rid": 7}]}, "samples[0].rid"),
        ({"samples": [{"rid": "HEALTH_CHECK_1"}]}, "samples[0].rid"),
        ({"samples": [{"rid": "a"}, {"rid": "a"}]}, "samples[1].rid"),
        ({"sampling_params": {"n": 2}}, "sampling_params.n"),
        ({"sampling_params": {"top_k": 2**31}}, "sampling_params.top_k"),
        ({"stream": 1}, "stream"),
        ({"return_logprob": True}, "return_logprob"),
        ({"lora_path": ["a"]}, "lora_path"),
        ({"lora_path": "unknown"}, "lora_path"),
        ({"text": None, "input_ids": [5] * 9000}, "input_ids"),
        ({"sampling_params": {"max_new_tokens": 100_000}}, "text"),
    ],
)
def test_a_bad_request_is_refused_as_a_whole(exact: ReplayClient, change: dict[str, Any], param: str) -> None:
    answer = exact.http.post("/hive/generate", json={**GOOD, **change})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, 400)
    assert len(ask(exact, GOOD)) == 1


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"text": None, "messages": [{"role": "x", "content": ""}]}, "calls[1].messages[0].role"),
        ({"lora_path": "unknown"}, "calls[1].lora_path"),
        ({"sampling_params": {"max_new_tokens": 100_000}}, "calls[1].text"),
    ],
)
def test_a_bad_call_refuses_its_whole_list(exact: ReplayClient, change: dict[str, Any], param: str) -> None:
    rid = f"list-{param}".replace("[", "-").replace("]", "")
    body = {"calls": [{**GOOD, "samples": [{"rid": rid}]}, {**GOOD, **change}]}
    answer = exact.http.post("/hive/generate", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    # Nothing of it was begun, and its ids are free.
    assert len(ask(exact, {"calls": [{**GOOD, "samples": [{"rid": rid}]}, GOOD]})) == 2


def test_an_id_in_flight_is_refused(exact: ReplayClient) -> None:
    body = {"text": PROMPT, "sampling_params": LONG, "samples": [{"rid": "twice"}], "stream": True}
    with asking(exact, body) as lines:
        next(lines)
        answer = exact.http.post("/hive/generate", json={**GOOD, "samples": [SAMPLE, {"rid": "twice"}]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "samples.rid")
        exact.http.delete("/hive/requests/twice")
        assert list(lines)[-1]["meta_info"]["finish_reason"]["type"] == "abort"


def test_nothing_is_left_behind(exact: ReplayClient) -> None:
    end = time.monotonic() + 20 * slowdown()
    while not (found := exact.post("/hive/check", {}))["idle"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert found["problems"] == []
