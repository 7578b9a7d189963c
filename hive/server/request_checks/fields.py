"""Checks of single fields: numbers, names, token ids, and custom parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from hive.server.kv_segments.request import KV_FIELD, SEGMENTS_FIELD, spans_request
from hive.server.request_checks.limits import INT32_MAX, INT64_MAX, Check, Limits
from hive.server.request_tag import RequestError, RequestTag, as_object, shown, shown_key


def integer(low: int, high: int | Callable[[Limits], int]) -> Check:
    def check(field: str, value: Any, limits: Limits) -> None:
        bound = high if isinstance(high, int) else high(limits)
        # bool is a subclass of int, and 1.0 == 1: only values of the exact type are integers on the wire.
        if type(value) is not int or not low <= value <= bound:
            raise RequestError(field, f"must be an integer between {low} and {bound}, got {shown(value)}")

    return check


def number(low: float, high: float, *, above: bool = False) -> Check:
    def check(field: str, value: Any, limits: Limits) -> None:
        fine = type(value) in (int, float) and low <= value <= high and not (above and value == low)
        if not fine:
            rule = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
            raise RequestError(field, f"must be a number {rule}, got {shown(value)}")

    return check


def check_flag(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, bool):
        raise RequestError(field, f"must be true or false, got {shown(value)}")


def check_top_k(field: str, value: Any, limits: Limits) -> None:
    # -1 is SGLang's "all"; values above the vocabulary mean the same, but the tensors are 32 bits wide.
    if type(value) is not int or not (value == -1 or 1 <= value <= INT32_MAX):
        raise RequestError(field, f"must be -1 or an integer between 1 and {INT32_MAX}, got {shown(value)}")


def check_name(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= limits.max_text_length:
        raise RequestError(
            field, f"must be a string of 1 to {limits.max_text_length} characters, got {shown(value)}"
        )


def check_text(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str) or len(value) > limits.max_text_length:
        raise RequestError(
            field, f"must be a string of at most {limits.max_text_length} characters, got {shown(value)}"
        )


def check_any_text(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str):
        raise RequestError(field, f"must be a string, got {shown(value)}")


def check_some_text(field: str, value: Any, limits: Limits) -> None:
    check_any_text(field, value, limits)
    if not value:
        raise RequestError(field, "must not be empty")


def check_hidden_states(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, bool) and value != "last":
        raise RequestError(field, f"must be true, false or 'last', got {shown(value)}")


def check_token_ids(field: str, value: Any, limits: Limits) -> None:
    """Check a non-empty list of token ids; prompts are long, so the loops run in C unless there is an error."""
    if not isinstance(value, list) or not value:
        raise RequestError(field, f"must be a non-empty list of token ids, got {shown(value)}")
    if set(map(type, value)) == {int} and min(value) >= 0 and max(value) < limits.vocab_size:
        return
    at, bad = next(
        (at, item)
        for at, item in enumerate(value)
        if type(item) is not int or not 0 <= item < limits.vocab_size
    )
    raise RequestError(
        f"{field}[{at}]", f"must be a token id between 0 and {limits.vocab_size - 1}, got {shown(bad)}"
    )


def check_few_token_ids(field: str, value: Any, limits: Limits) -> None:
    check_token_ids(field, value, limits)
    if len(value) > limits.max_token_ids:
        raise RequestError(field, f"must have at most {limits.max_token_ids} token ids, got {len(value)}")


def check_stop_token_ids(field: str, value: Any, limits: Limits) -> None:
    if value != []:
        check_few_token_ids(field, value, limits)


def check_logit_bias(field: str, value: Any, limits: Limits) -> None:
    entries = as_object(field, value)
    if len(entries) > limits.max_token_ids:
        raise RequestError(field, f"must have at most {limits.max_token_ids} entries, got {len(entries)}")
    for key, bias in entries.items():
        if not (_DECIMAL.fullmatch(key) and int(key) < limits.vocab_size):
            raise RequestError(
                field, f"must have token ids between 0 and {limits.vocab_size - 1} as keys, got {shown(key)}"
            )
        _bias(f"{field}.{key}", bias, limits)


_DECIMAL = re.compile(r"[0-9]{1,9}", re.ASCII)
_bias = number(-1e6, 1e6)


def check_custom_params(field: str, value: Any, limits: Limits) -> None:
    """Check custom parameters, which SGLang's typed messages limit to scalars, and lists or objects of scalars.

    Raises:
        RequestError: with the invalid entry and its rule; the tag under ``hive`` has rules of its own.
    """
    for key, item in as_object(field, value).items():
        name = f"{field}.{shown_key(key)}"
        if key == "hive":
            if item is not None:
                RequestTag.parse(item, name)
        elif key == SEGMENTS_FIELD:
            if not limits.kv_segments:
                raise RequestError(name, "needs a server with --hive-kv-segments")
            spans_request(item, limits.context_length, name)
        elif key == KV_FIELD:
            raise RequestError(name, f"is internal to the server: declare segments in {SEGMENTS_FIELD}")
        elif key.startswith("__"):
            raise RequestError(name, "is reserved: keys must not begin with two underscores")
        elif isinstance(item, list):
            for index, entry in enumerate(item):
                _scalar(f"{name}[{index}]", entry)
        elif isinstance(item, dict):
            for inner, entry in item.items():
                _scalar(f"{name}.{shown_key(inner)}", entry)
        else:
            _scalar(name, item)


def _scalar(field: str, value: Any) -> None:
    fine = value is None or type(value) in (bool, str)
    fine = fine or (type(value) is int and -(2**63) <= value <= INT64_MAX)
    fine = fine or (type(value) is float and math.isfinite(value))
    if not fine:
        raise RequestError(
            field, f"must be a string, a number of 64 bits, true, false or null, got {shown(value)}"
        )
