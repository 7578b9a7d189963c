"""Bodies of ``/hive/prefill`` and ``/hive/decode``, and segments that ordinary requests declare."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.kv_segments.separator import SEPARATOR
from hive.server.request_checks import (
    Limits,
    check_chat,
    check_completion,
    check_decode,
    check_generate,
    check_prefill,
    check_request_object,
)
from hive.server.request_checks.choreography import MAX_CALLS
from hive.server.request_tag import RequestError, within_call

LIMITS = Limits(vocab_size=100, context_length=64, kv_segments=True)
WITHOUT = replace(LIMITS, kv_segments=False)
BOTH = pytest.mark.parametrize(
    ("check", "text", "tokens"),
    [(check_prefill, "text", "tokens"), (check_decode, "header", "header_tokens")],
    ids=["prefill", "decode"],
)
Check = Callable[[Any, Limits], None]


def blamed(check: Check, body: Any, limits: Limits = LIMITS) -> str:
    """The field that a refusal names."""
    with pytest.raises(RequestError) as caught:
        check(body, limits)
    assert len(str(caught.value)) < 500
    return caught.value.field


@BOTH
def test_good_calls_pass(check: Check, text: str, tokens: str) -> None:
    shared = {"parents": ["a"], "offsets": [None], "new_offset": 4, "id": "b", "lora_path": "lora"}
    for body in (
        {text: "hi"},
        {tokens: [0, 99]},
        {text: "hi", tokens: None},
        {text: None, tokens: [5]},
        {text: "hi", **shared},
        {text: "hi", **dict.fromkeys(shared)},
        {"calls": [{text: "hi"}, {tokens: [5], **shared}]},
        {"calls": [{text: "hi"}] * MAX_CALLS},
    ):
        check(body, LIMITS)


@pytest.mark.parametrize(
    "more",
    [
        {"sampling_params": None, "corrector": None, "stream": None},
        {
            "sampling_params": {
                "max_new_tokens": 1,
                "n": 1,
                "temperature": 0,
                "stop": ["x"],
                "sampling_seed": 3,
            }
        },
        {"sampling_params": {"max_new_tokens": None, "custom_params": None}},
        {"sampling_params": {"custom_params": {"hive": {"state": "s"}, "x": 1}}},
        {"corrector": "recompute-all", "stream": True},
        {"corrector": {"kind": "blend", "share": 0.2, "block": 32}, "stream": False},
    ],
)
def test_good_decodes_pass(more: dict[str, Any]) -> None:
    check_decode({"header": "hi", **more}, LIMITS)
    if not more.get("stream"):
        check_decode({"calls": [{"header": "hi", **more}]}, LIMITS)


@BOTH
def test_without_the_flag_the_refusal_names_it(check: Check, text: str, tokens: str) -> None:
    for body in ({text: "hi"}, {"calls": []}, None):
        with pytest.raises(RequestError, match="--hive-kv-segments"):
            check(body, WITHOUT)


@BOTH
@pytest.mark.parametrize("body", [None, [], "text", 5, True])
def test_a_body_is_an_object(check: Check, text: str, tokens: str, body: Any) -> None:
    assert blamed(check, body) == "body"


@BOTH
def test_a_call_brings_something_of_its_own(check: Check, text: str, tokens: str) -> None:
    for body in (
        {},
        {"parents": ["a"]},
        {text: None, tokens: None},
        {text: "hi", tokens: [1]},
        {text: "", tokens: [1]},
        {text: ""},
        {text: 5},
        {text: ["hi"]},
        {text: {"a": 1}},
        {text: True},
    ):
        assert blamed(check, body) == text
    for value in ([], "hi", 5, {"a": 1}, True):
        assert blamed(check, {tokens: value}) == tokens
    for value in (-1, 100, True, 1.0, "1", None, [1], 10**5000):
        assert blamed(check, {tokens: [5, value]}) == f"{tokens}[1]"


@BOTH
def test_unknown_fields_are_named(check: Check, text: str, tokens: str) -> None:
    others = {
        check_prefill: ("header", "sampling_params", "corrector", "stream"),
        check_decode: ("text", "tokens"),
    }
    for name in ("rid", "parent", "input_ids", "session", *others[check]):
        assert blamed(check, {text: "hi", name: None}) == name
    assert blamed(check, {text: "hi", "a b": 1}) == "'a b'"


@BOTH
@pytest.mark.parametrize("value", ["", "x" * 513, 5, ["lora"], True])
def test_adapters_have_names(check: Check, text: str, tokens: str, value: Any) -> None:
    assert blamed(check, {text: "hi", "lora_path": value}) == "lora_path"


@BOTH
def test_lists_of_calls(check: Check, text: str, tokens: str) -> None:
    for calls in (None, [], {}, "ab", 5, [{text: "hi"}] * (MAX_CALLS + 1)):
        assert blamed(check, {"calls": calls}) == "calls"
    for other in (text, "parents", "stream", "other"):
        assert blamed(check, {"calls": [{text: "hi"}], other: None}) == other
    for call in (None, [], "ab", 5):
        assert blamed(check, {"calls": [{text: "hi"}, call]}) == "calls[1].call"
    assert blamed(check, {"calls": [{text: "hi"}, {}]}) == f"calls[1].{text}"
    assert blamed(check, {"calls": [{tokens: [5, -1]}]}) == f"calls[0].{tokens}[1]"
    assert blamed(check, {"calls": [{"calls": []}]}) == "calls[0].calls"


def test_a_list_of_decodes_is_not_streamed() -> None:
    assert (
        blamed(check_decode, {"calls": [{"header": "hi"}, {"header": "hi", "stream": True}]})
        == "calls[1].stream"
    )


@pytest.mark.parametrize(
    ("more", "field"),
    [
        *(({"stream": value}, "stream") for value in (0, 1, "true", [])),
        *(({"corrector": value}, "corrector") for value in ("", "other", 5, True, [])),
        ({"corrector": {}}, "corrector.kind"),
        ({"corrector": {"kind": "blend", "share": 2}}, "corrector.share"),
        *(({"sampling_params": value}, "sampling_params") for value in ([], [{}], "x", 5, True)),
        *(({"sampling_params": {"n": value}}, "sampling_params.n") for value in (None, 0, 2, "1", True)),
        *(
            ({"sampling_params": {"max_new_tokens": value}}, "sampling_params.max_new_tokens")
            for value in (0, -1, 1.0, True, 2**31)
        ),
        ({"sampling_params": {"other": 1}}, "sampling_params.other"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": {"custom_params": 5}}, "sampling_params.custom_params"),
        *(
            (
                {"sampling_params": {"custom_params": {name: value}}},
                f"sampling_params.custom_params.{name}",
            )
            for name in ("hive_segments", "hive_kv")
            for value in ({}, None, {"spans": []}, "{}")
        ),
    ],
)
def test_bad_decodes_are_refused_by_field(more: dict[str, Any], field: str) -> None:
    assert blamed(check_decode, {"header": "hi", **more}) == field
    assert blamed(check_decode, {"calls": [{"header": "hi", **more}]}) == f"calls[0].{field}"


def test_an_error_in_a_call_keeps_its_rule() -> None:
    with pytest.raises(RequestError) as caught, within_call(3):
        raise RequestError("id", "must be new")
    error = caught.value
    assert (error.field, error.rule, str(error)) == ("calls[3].id", "must be new", "calls[3].id must be new")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 120) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "text",
    "tokens",
    "header",
    "header_tokens",
    "parents",
    "id",
    "sampling_params",
    "corrector",
    "stream",
)
bodies = st.dictionaries(st.sampled_from([*FIELDS, "calls", "lora_path"]), values, max_size=4)


@given(bodies | st.fixed_dictionaries({"calls": st.lists(bodies, min_size=1, max_size=2)}))
def test_nothing_but_a_refusal_comes_out(body: Any) -> None:
    for check in (check_prefill, check_decode):
        with suppress(RequestError):
            check(body, LIMITS)


# Ordinary requests.

IDS = {"input_ids": list(range(10))}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def generate(segments: Any, **body: Any) -> dict[str, Any]:
    return {**(body or IDS), "sampling_params": {"custom_params": {"hive_segments": segments}}}


def spans(*pairs: tuple[int, int]) -> dict[str, Any]:
    return {"spans": [{"start": start, "end": end} for start, end in pairs]}


def test_declared_segments_pass() -> None:
    check_generate(generate(spans((0, 4), (4, 10))), LIMITS)
    check_generate(generate({"keep_output": True}, text="hi"), LIMITS)
    check_generate(generate({"spans": []}, text="hi"), LIMITS)
    check_completion({"prompt": [1, 2, 3], "custom_params": {"hive_segments": spans((0, 3))}}, LIMITS)
    check_chat({**CHAT, "custom_params": {"hive_segments": {"keep_output": True}}}, LIMITS)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (generate(spans((0, 11))), ".spans[0].end"),
        (generate(spans((0, 4), (3, 5))), ".spans[1].start"),
        (generate(spans((0, 2)), text="hi"), ".spans"),
        (generate({}, text=["hi", "ho"]), ""),
        (generate({}, input_ids=[[1, 2]]), ""),
        (generate({"corrector": "other"}), ".corrector"),
        (generate({"spans": 5}), ".spans"),
        (generate([]), ""),
        (generate("spans"), ""),
        (generate(spans((0, LIMITS.context_length + 1)), text="hi"), ".spans[0].end"),
    ],
)
def test_bad_declarations_are_refused_by_field(body: Any, field: str) -> None:
    assert blamed(check_generate, body) == f"sampling_params.custom_params.hive_segments{field}"


def test_a_batch_with_parameters_for_each_prompt_declares_nothing() -> None:
    params = [{}, {"custom_params": {"hive_segments": {}}}]
    body = {"text": ["hi", "ho"], "sampling_params": params}
    assert blamed(check_generate, body).endswith("custom_params.hive_segments")


@pytest.mark.parametrize(("check", "body"), [(check_completion, {"prompt": "hi"}), (check_chat, CHAT)])
def test_openai_bodies_are_checked_as_well(check: Check, body: dict[str, Any]) -> None:
    for segments, field in (({"other": 1}, ".other"), (spans((5, 5)), ".spans[0].end"), (5, "")):
        found = blamed(check, {**body, "custom_params": {"hive_segments": segments}})
        assert found == f"custom_params.hive_segments{field}"


@pytest.mark.parametrize(
    ("prompt", "segments", "field"),
    [
        ([1, 2, 3], spans((0, 4)), ".spans[0].end"),
        ([1, 2, 3], spans((0, 2), (3, 4)), ".spans[1].end"),
        ("hi", spans((0, 1)), ".spans"),
        (f"a{SEPARATOR}b{SEPARATOR}c", spans((0, 1)), ".spans"),
        ([[1, 2, 3]], spans((0, 1)), ""),
        (["hi", "ho"], {"keep_output": True}, ""),
    ],
)
def test_segments_of_a_completion_are_of_its_one_prompt(prompt: Any, segments: Any, field: str) -> None:
    body = {"prompt": prompt, "custom_params": {"hive_segments": segments}}
    assert blamed(check_completion, body) == f"custom_params.hive_segments{field}"


@pytest.mark.parametrize("limits", [LIMITS, WITHOUT])
def test_what_hive_tells_its_scheduler_is_not_for_clients(limits: Limits) -> None:
    for value in ("{}", {}, None):
        body = {**IDS, "sampling_params": {"custom_params": {"hive_kv": value}}}
        assert blamed(check_generate, body, limits) == "sampling_params.custom_params.hive_kv"
        assert (
            blamed(check_chat, {**CHAT, "custom_params": {"hive_kv": value}}, limits)
            == "custom_params.hive_kv"
        )


@pytest.mark.parametrize(
    ("check", "name"),
    [(check_generate, "text"), (check_completion, "prompt")],
    ids=["generate", "completion"],
)
def test_separators_are_for_a_prompt_that_comes_alone(check: Check, name: str) -> None:
    separated = f"a{SEPARATOR}b{SEPARATOR}c"
    check({name: separated}, LIMITS)
    for texts, at in (([separated], 0), (["a", separated], 1), (["a", SEPARATOR], 1)):
        with pytest.raises(RequestError, match="send one request for each prompt") as caught:
            check({name: texts}, LIMITS)
        assert caught.value.field == f"{name}[{at}]"
        check({name: texts}, WITHOUT)
    check({name: ["a", SEPARATOR[1:]]}, LIMITS)


def test_the_engines_object_has_no_separators_in_a_list() -> None:
    obj = SimpleNamespace(text=["a", SEPARATOR], top_logprobs_num=None)
    assert blamed(check_request_object, obj) == "text[1]"
    check_request_object(obj, WITHOUT)


def test_without_the_flag_there_are_no_segments() -> None:
    for check, body in (
        (check_generate, generate({})),
        (check_completion, {"prompt": "hi", "custom_params": {"hive_segments": {}}}),
        (check_chat, {**CHAT, "custom_params": {"hive_segments": spans((0, 1))}}),
    ):
        with pytest.raises(RequestError, match="--hive-kv-segments"):
            check(body, WITHOUT)
