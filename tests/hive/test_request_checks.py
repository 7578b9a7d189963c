"""The checks: valid bodies pass, every bad one is refused by name, and nothing but a RequestError comes out."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.bad_requests.requests import BAD_REQUESTS, LEFT_TO_SGLANG, VOCAB_SIZE, BadRequest
from hive.server.request_checks import (
    Limits,
    check_chat,
    check_completion,
    check_generate,
    check_request_object,
)
from hive.server.request_tag import RequestError

LIMITS = Limits(vocab_size=VOCAB_SIZE, context_length=8192)
CHECKS: dict[str, Callable[[Any, Limits], None]] = {
    "/generate": check_generate,
    "/v1/completions": check_completion,
    "/v1/chat/completions": check_chat,
}


def refusal(path: str, body: Any) -> RequestError | None:
    try:
        CHECKS[path](body, LIMITS)
    except RequestError as error:
        return error
    return None


def checkable() -> list[BadRequest]:
    """The bad requests that are JSON and that the checks, not SGLang, refuse."""
    chosen = []
    for request in BAD_REQUESTS:
        try:
            orjson.loads(request.body)
        except orjson.JSONDecodeError:
            continue
        if request.path in CHECKS and request.name not in LEFT_TO_SGLANG:
            chosen.append(request)
    return chosen


@pytest.mark.parametrize("request_", checkable(), ids=lambda request: request.name)
def test_a_bad_request_is_refused_by_name(request_: BadRequest) -> None:
    with pytest.raises(RequestError) as caught:
        CHECKS[request_.path](orjson.loads(request_.body), LIMITS)
    assert request_.blamed in str(caught.value)
    assert len(str(caught.value)) < 500


PARAMS: dict[str, Any] = {
    "n": 2,
    "max_new_tokens": 16,
    "min_new_tokens": 1,
    "temperature": 0.7,
    "top_p": 0.95,
    "top_k": -1,
    "min_p": 0,
    "frequency_penalty": -2,
    "presence_penalty": 2,
    "repetition_penalty": 1.1,
    "sampling_seed": 2**63 - 1,
    "stop": ["\n", "END"],
    "stop_token_ids": [0, VOCAB_SIZE - 1],
    "stop_regex": r"Answer:\s*\d{1,9}\b",
    "ignore_eos": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": True,
    "no_stop_trim": True,
    "stream_interval": 1,
    "logit_bias": {"5": -100, "49151": 2.5},
    "regex": "a+",
    "custom_params": {"hive": {"agent": "a"}, "x": [1, "b", None], "y": {"z": 1.5}, "w": None},
}
GENERATE: list[dict[str, Any]] = [
    {"text": "hi"},
    {"text": "hi", "sampling_params": None},
    {"text": "hi", "sampling_params": PARAMS, "rid": "r1", "stream": False},
    {"text": "hi", "sampling_params": dict.fromkeys(PARAMS.keys() - {"n"})},
    {"text": ["a", "b"], "sampling_params": [{}, {"temperature": 0}], "rid": ["a", "b"]},
    {"text": ["a", "b"], "sampling_params": {"n": 3}, "rid": "r"},
    {"input_ids": [0, 1, VOCAB_SIZE - 1]},
    {"input_ids": [[1], [2, 3]], "return_logprob": [True, False], "top_logprobs_num": [2, 0]},
    {"text": "hi", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 20},
    {"text": "hi", "return_logprob": True, "logprob_start_len": -1, "token_ids_logprob": [1, 2]},
    {"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [[1], [2]]},
    {"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [1]},
    {"input_embeds": [[0.5, 1], [0.25, 0.5]]},
    {"input_embeds": [[[0.5]], [[0.25]]], "rid": ["a", "b"]},
    {"text": ["a", "b"], "lora_path": ["x", None], "extra_key": "k"},
    {"text": "", "image_data": "data:,x"},
    {"text": "hi", "a_field_of_another_version": {"anything": [1]}},
]
OPENAI: dict[str, Any] = {
    "n": 2,
    "seed": 0,
    "max_tokens": 5,
    "min_tokens": 0,
    "temperature": 1,
    "top_p": 1,
    "top_k": 5,
    "stop": "x",
    "stop_token_ids": [],
    "logit_bias": {"1": 0},
    "custom_params": {"hive": {"state": "s", "sample": 1}},
    "stream": True,
    "stream_options": {"include_usage": True},
}
COMPLETION: list[dict[str, Any]] = [
    {"prompt": "hi"},
    {"prompt": "hi", "logprobs": 5, "echo": True, **OPENAI},
    {"prompt": [1, 2], "rid": "x"},
    {"prompt": [[1], [2]], "rid": ["x", "y"]},
    {"prompt": ["a", "b"]},
]
CHAT: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}]},
    {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "logprobs": True,
        "top_logprobs": 20,
        "max_completion_tokens": 9,
        "input_ids": [1],
        **OPENAI,
    },
]
VALID = [
    *(("/generate", body) for body in GENERATE),
    *(("/v1/completions", body) for body in COMPLETION),
    *(("/v1/chat/completions", body) for body in CHAT),
]


@pytest.mark.parametrize(("path", "body"), VALID)
def test_a_valid_request_passes_untouched(path: str, body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    CHECKS[path](body, LIMITS)
    assert body == before


@pytest.mark.parametrize("body", GENERATE)
def test_the_engines_object_passes_like_its_body(body: dict[str, Any]) -> None:
    check_request_object(SimpleNamespace(**{"top_logprobs_num": None, "received_time": 1.5} | body), LIMITS)


def test_a_request_for_embeddings_passes() -> None:
    check_request_object(SimpleNamespace(text=[["query", "document"]], sampling_params={}), LIMITS)


@pytest.mark.parametrize("mark", ["HEALTH_CHECK", "HIVE_WARM_UP"])
def test_the_servers_own_requests_pass_as_objects_only(mark: str) -> None:
    probe = {
        "rid": f"{mark}_1",
        "input_ids": [0],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
    }
    check_request_object(SimpleNamespace(**probe, top_logprobs_num=None), LIMITS)
    with pytest.raises(RequestError, match=f"must not begin with {mark}"):
        check_generate(probe, LIMITS)


@pytest.mark.parametrize(
    ("fields", "blamed"),
    [
        ({"text": "a", "sampling_params": {"top_k": 2**31}}, "sampling_params.top_k"),
        ({"text": "a", "top_logprobs_num": VOCAB_SIZE + 1}, "top_logprobs_num"),
        ({"input_ids": [VOCAB_SIZE]}, "input_ids[0]"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"n": 0}]}, "sampling_params[1].n"),
    ],
)
def test_the_engines_object_is_refused_like_its_body(fields: dict[str, Any], blamed: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_request_object(SimpleNamespace(**{"top_logprobs_num": None} | fields), LIMITS)
    assert caught.value.field == blamed


@pytest.mark.parametrize(
    ("body", "blamed"),
    [
        ({"text": ["a"] * 4097}, "text"),
        ({"text": ["a"] * 100, "sampling_params": {"n": 41}}, "sampling_params.n"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params"),
        ({"text": "a", "sampling_params": {"n": None}}, "sampling_params.n"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": 4, "min_new_tokens": 5}},
            "sampling_params.min_new_tokens",
        ),
        ({"text": "a", "sampling_params": {"stop": ["x"] * 65}}, "sampling_params.stop"),
        ({"text": "a", "sampling_params": {"stop": ["x", ""]}}, "sampling_params.stop[1]"),
        (
            {"text": "a", "sampling_params": {"custom_params": {"hive": 1}}},
            "sampling_params.custom_params.hive",
        ),
        (
            {"text": ["a", "b"], "sampling_params": [{}, {"custom_params": {"hive": {"sample": "x"}}}]},
            "sampling_params[1].custom_params.hive.sample",
        ),
        ({"text": "a", "sampling_params": {"logit_bias": {"\uff15": 1}}}, "sampling_params.logit_bias"),
        ({"input_ids": [1], "token_ids_logprob": list(range(5000))}, "token_ids_logprob"),
        ({"text": ["a", "b"], "token_ids_logprob": [[1], 0]}, "token_ids_logprob[1]"),
        ({"text": ["a", "b"], "top_logprobs_num": [1, None]}, "top_logprobs_num[1]"),
        ({"text": ["a", "b"], "return_logprob": [True, None]}, "return_logprob[1]"),
    ],
)
def test_the_bounds_of_a_request(body: dict[str, Any], blamed: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_generate(body, LIMITS)
    assert caught.value.field == blamed


@pytest.mark.parametrize(
    "pattern",
    [r"\n\n", "Answer: [0-9]+", "(?:a|b){1,3}", "(?i)end", r"\d++(?:\.\d++)*+", "a{0,20}b{0,20}", "(ab)+"],
)
def test_an_affordable_stop_regex_passes(pattern: str) -> None:
    check_generate({"text": "a", "sampling_params": {"stop_regex": pattern}}, LIMITS)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", ".*.*x", "(?:a{1,50}){1,50}b", r"(\w+\s?)+$", "(a?){40}a{40}"]
)
def test_a_stop_regex_that_backtracks_is_refused(pattern: str) -> None:
    with pytest.raises(RequestError, match="must not backtrack without bound"):
        check_generate({"text": "a", "sampling_params": {"stop_regex": pattern}}, LIMITS)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**31, 2**63, 10**30])
    | st.floats()
    | st.text(max_size=5)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
PARAM_NAMES = st.sampled_from([*PARAMS, "json_schema", "ebnf", "structural_tag", "is_normalized"])
FIELD_NAMES = st.sampled_from(
    [
        *("text", "input_ids", "input_embeds", "sampling_params", "rid", "stream", "http_worker_ipc"),
        *("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob"),
        *("prompt", "messages", "n", "seed", "logprobs", "top_logprobs", "custom_params", "extra_key"),
        *("max_tokens", "min_tokens", "stop_regex", "response_format", "session_params", "priority"),
    ]
)
PARAM_DICTS = st.dictionaries(PARAM_NAMES, JSON, max_size=4)
BODIES = JSON | st.dictionaries(
    FIELD_NAMES, JSON | PARAM_DICTS | st.lists(PARAM_DICTS, max_size=3), max_size=5
)


@pytest.mark.parametrize("path", CHECKS)
@given(body=BODIES, text=st.booleans())
def test_any_body_passes_or_is_refused(path: str, body: Any, text: bool) -> None:
    if text and isinstance(body, dict):
        body = {"text": "a", "prompt": "a", "messages": [{}]} | body
    error = refusal(path, body)
    if error is not None:
        assert error.field
        assert str(error).isprintable()
        assert len(str(error)) < 600


@given(st.text(alphabet="ab.*+?{}()[]|\\d0123456789,^$", max_size=30))
def test_any_pattern_is_judged_quickly(pattern: str) -> None:
    started = time.monotonic()
    refusal("/generate", {"text": "a", "sampling_params": {"stop_regex": pattern}})
    assert time.monotonic() - started < 1


@given(st.dictionaries(st.sampled_from(list(PARAMS)), SCALARS, max_size=3))
def test_params_that_pass_have_types_that_the_engine_takes(params: dict[str, Any]) -> None:
    if refusal("/generate", {"text": "a", "sampling_params": params}) is not None:
        return
    for name in ("n", "top_k", "max_new_tokens", "min_new_tokens", "stream_interval"):
        assert params.get(name) is None or -1 <= params[name] < 2**31
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        assert params.get(name) is None or 0 <= params[name] <= 100


def test_checking_a_small_request_costs_little() -> None:
    body = {"text": "x" * 2000, "sampling_params": {"temperature": 0.7, "max_new_tokens": 64, "stop": ["\n"]}}
    started = time.perf_counter()
    for _ in range(1000):
        check_generate(body, LIMITS)
    assert (time.perf_counter() - started) / 1000 < 100e-6


def test_what_a_router_adds_to_a_body_passes() -> None:
    """sglang-router 0.3.2 writes out defaults of fields that a request did not have."""
    added = (
        "stream",
        "return_text_in_logprobs",
        "return_hidden_states",
        "background",
        "no_logs",
        "return_bytes",
    )
    body = {
        "text": "x",
        "model": None,
        "log_metrics": True,
        "return_entropy": False,
        **dict.fromkeys(added, False),
    }
    check_generate(body, LIMITS)
    for value in (True, 0, "", []):
        with pytest.raises(RequestError, match="return_bytes is internal to the server"):
            check_generate({**body, "return_bytes": value}, LIMITS)
    with pytest.raises(RequestError, match="http_worker_ipc is internal"):
        check_generate({**body, "http_worker_ipc": False}, LIMITS)
