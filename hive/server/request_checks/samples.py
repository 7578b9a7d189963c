"""Checks of ``/hive/generate``: one or more prompts, and the samples to draw for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hive.server.request_checks.batches import check_all, check_no_probe, check_segments, only_one_of
from hive.server.request_checks.engine import check_sampling_params
from hive.server.request_checks.fields import check_flag, check_name, check_some_text, check_token_ids
from hive.server.request_checks.limits import Limits
from hive.server.request_checks.openai import check_dialogue
from hive.server.request_checks.parameters import SAMPLING_PARAMS
from hive.server.request_tag import RequestError, RequestTag, as_object, check_known, shown, within_call

MAX_SAMPLES = 256
"""Maximum samples in one request."""

PROMPTS = ("messages", "text", "input_ids")
_FIELDS = (*PROMPTS, "prefix_ids", "sampling_params", "lora_path", "stream", "samples")
_OF_A_SAMPLE = ("rid", "sampling_seed", "hive")


def check_samples(body: Any, limits: Limits) -> None:
    """Check the body of ``/hive/generate``: a call (a prompt and its samples), or ``calls`` with several of them.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    fields = as_object("body", body)
    taken: set[str] = set()
    if "calls" not in fields:
        _check_call(fields, limits, taken)
        return
    check_known(fields, ("calls",))
    calls = fields["calls"]
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_SAMPLES:
        raise RequestError("calls", f"must be a list of 1 to {MAX_SAMPLES} calls, got {shown(calls)}")
    for at, call in enumerate(calls):
        with within_call(at):
            _check_call(as_object("call", call), limits, taken)
    if sum(len(call["samples"]) for call in calls) > MAX_SAMPLES:
        raise RequestError("calls", f"must have at most {MAX_SAMPLES} samples together")


def calls_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls in a checked body."""
    return body.get("calls") or [body]


def ids_of(body: Mapping[str, Any]) -> list[str]:
    """Return the ids that a checked body gives its samples."""
    return [
        sample["rid"]
        for call in calls_of(body)
        for sample in call["samples"]
        if sample.get("rid") is not None
    ]


def _check_call(fields: Mapping[str, Any], limits: Limits, taken: set[str]) -> None:
    """Check a prompt and its samples. ``taken`` are the ids of samples before these, and gets theirs."""
    check_known(fields, _FIELDS)
    _check_prompt(fields, limits)
    params = fields.get("sampling_params")
    if params is not None:
        check_sampling_params("sampling_params", params, limits)
        if params.get("n", 1) != 1:
            raise RequestError("sampling_params.n", "must be 1: send a sample for each answer")
        ids = fields.get("input_ids")
        check_segments("sampling_params.custom_params", params.get("custom_params"), ids, None)
    check_all(fields, {"lora_path": check_name, "stream": check_flag}, limits)
    _check_each(fields.get("samples"), limits, taken)


def _check_prompt(fields: Mapping[str, Any], limits: Limits) -> None:
    given = only_one_of(fields, PROMPTS)
    if given == "messages":
        check_dialogue(fields, limits)
        return
    if fields.get("prefix_ids"):
        raise RequestError("prefix_ids", "must only be given with messages")
    check = check_token_ids if given == "input_ids" else check_some_text
    check(given, fields[given], limits)


def _check_each(samples: Any, limits: Limits, taken: set[str]) -> None:
    if not isinstance(samples, list) or not 1 <= len(samples) <= MAX_SAMPLES:
        raise RequestError("samples", f"must be a list of 1 to {MAX_SAMPLES} samples, got {shown(samples)}")
    for at, sample in enumerate(samples):
        name = f"samples[{at}]"
        check_known(as_object(name, sample), _OF_A_SAMPLE, f"{name}.")
        rid = sample.get("rid")
        if rid is not None:
            check_name(f"{name}.rid", rid, limits)
            check_no_probe(rid, f"{name}.rid")
            if rid in taken:
                raise RequestError(f"{name}.rid", f"must not be that of another sample, got {shown(rid)}")
            taken.add(rid)
        if sample.get("sampling_seed") is not None:
            SAMPLING_PARAMS["sampling_seed"](f"{name}.sampling_seed", sample["sampling_seed"], limits)
        if sample.get("hive") is not None:
            RequestTag.parse(sample["hive"], f"{name}.hive")
