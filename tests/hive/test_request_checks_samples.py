"""What ``/hive/generate`` may be sent, without a server; ``tests/server/test_samples.py`` sends it to one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.request_checks import Limits, check_samples, ids_of
from hive.server.request_checks.samples import MAX_SAMPLES
from hive.server.request_tag import RequestError

LIMITS = Limits(vocab_size=100, context_length=64)
GOOD: dict[str, Any] = {"input_ids": [1, 2], "samples": [{"rid": "a"}, {}, {"rid": "b", "sampling_seed": 0}]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_good_request_passes_and_names_its_samples() -> None:
    check_samples(GOOD, LIMITS)
    assert ids_of(GOOD) == ["a", "b"]
    check_samples({**GOOD, "samples": [{}] * MAX_SAMPLES, "stream": None, "lora_path": None}, LIMITS)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sampling_params": {"n": 2}}, "sampling_params.n"),
        ({"prefix_ids": [1]}, "prefix_ids"),
        ({"text": "a"}, "messages"),
        ({"samples": [{"rid": "a"}, {"rid": "a"}]}, "samples[1].rid"),
        ({"samples": [{"hive": {"sample": -1}}]}, "samples[0].hive.sample"),
        ({"n": 2}, "n"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_samples({**GOOD, **change}, LIMITS)
    assert caught.value.field == field


def test_a_list_of_calls_names_all_samples() -> None:
    other = {"text": "a", "samples": [{"rid": "c"}]}
    check_samples({"calls": [GOOD, other]}, LIMITS)
    assert ids_of({"calls": [GOOD, other]}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"calls": []}, "calls"),
        ({"calls": GOOD}, "calls"),
        ({"calls": [GOOD], "stream": True}, "stream"),
        ({"calls": [GOOD, 3]}, "calls[1].call"),
        ({"calls": [{"input_ids": [1], "samples": [{}]}, {"calls": [GOOD]}]}, "calls[1].calls"),
        ({"calls": [GOOD, {**GOOD, "sampling_params": {"n": 2}}]}, "calls[1].sampling_params.n"),
        ({"calls": [GOOD, GOOD]}, "calls[1].samples[0].rid"),
        ({"calls": [{**GOOD, "samples": [{}] * 200}] * 2}, "calls"),
    ],
)
def test_what_is_wrong_in_a_list_is_named(body: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_samples(body, LIMITS)
    assert caught.value.field == field


@given(st.sampled_from([*GOOD, "text", "messages", "sampling_params", "stream", "lora_path"]), json_values)
def test_whatever_is_sent_it_is_taken_or_refused(name: str, value: Any) -> None:
    body = {**GOOD, name: value}
    refusal = None
    try:
        check_samples(body, LIMITS)
    except RequestError as error:
        refusal = error
    assert refusal.field if refusal else 1 <= len(body["samples"]) <= MAX_SAMPLES
