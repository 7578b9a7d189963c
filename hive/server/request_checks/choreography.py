"""Checks of ``/hive/prefill`` and ``/hive/decode``, as far as they do not depend on existing messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hive.server.kv_segments.correctors import corrector_of
from hive.server.kv_segments.request import SEGMENTS_FIELD
from hive.server.request_checks.batches import check_all, only_one_of
from hive.server.request_checks.engine import check_sampling_params
from hive.server.request_checks.fields import check_flag, check_name, check_some_text, check_token_ids
from hive.server.request_checks.limits import Limits
from hive.server.request_tag import RequestError, as_object, check_known, shown, shown_key, within_call

MAX_CALLS = 256
"""Maximum calls in one list of parallel calls."""

_SHARED = ("parents", "offsets", "new_offset", "id", "lora_path")
_PREFILL = ("text", "tokens", *_SHARED)
_DECODE = ("header", "header_tokens", *_SHARED, "sampling_params", "corrector", "stream")


def check_prefill(body: Any, limits: Limits) -> None:
    """Check the body of ``/hive/prefill``.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    _check_calls(body, limits, "/hive/prefill", _check_prefill)


def check_decode(body: Any, limits: Limits) -> None:
    """Check the body of ``/hive/decode``.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    _check_calls(body, limits, "/hive/decode", _check_decode)


def _check_calls(
    body: Any, limits: Limits, route: str, check: Callable[[Mapping[str, Any], Limits], None]
) -> None:
    if not limits.kv_segments:
        raise RequestError("path", f"must not be {route}: the server was started without --hive-kv-segments")
    fields = as_object("body", body)
    if "calls" not in fields:
        check(fields, limits)
        return
    for name in fields:
        if name == "stream" and check is _check_decode:
            check_flag("stream", fields["stream"], limits)
        elif name != "calls":
            raise RequestError(shown_key(name), "must be given in each of the calls")
    calls = fields["calls"]
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_CALLS:
        raise RequestError("calls", f"must be a list of 1 to {MAX_CALLS} calls, got {shown(calls)}")
    for at, call in enumerate(calls):
        with within_call(at):
            check(as_object("call", call), limits)
            if call.get("stream"):
                raise RequestError("stream", "must be set beside calls: a list is streamed as a whole")


def _check_prefill(call: Mapping[str, Any], limits: Limits) -> None:
    check_known(call, _PREFILL)
    _check_own(call, "text", "tokens", limits)
    check_all(call, {"lora_path": check_name}, limits)


def _check_decode(call: Mapping[str, Any], limits: Limits) -> None:
    check_known(call, _DECODE)
    _check_own(call, "header", "header_tokens", limits)
    check_all(call, {"lora_path": check_name, "stream": check_flag}, limits)
    if call.get("corrector") is not None:
        corrector_of(call["corrector"])
    params = call.get("sampling_params")
    if params is None:
        return
    check_sampling_params("sampling_params", params, limits)
    if params.get("max_new_tokens") == 0:
        raise RequestError(
            "sampling_params.max_new_tokens",
            "must be at least 1: use /hive/prefill for a message without new tokens",
        )
    if params.get("n", 1) != 1:
        raise RequestError("sampling_params.n", "must be 1: send a list of calls for several messages")
    if SEGMENTS_FIELD in (params.get("custom_params") or {}):
        raise RequestError(
            f"sampling_params.custom_params.{SEGMENTS_FIELD}",
            "must not be set: a call places messages, not segments",
        )


def _check_own(call: Mapping[str, Any], text: str, tokens: str, limits: Limits) -> None:
    """Check that a call has text or tokens of its own, at least one: the next token is computed from the last."""
    given = only_one_of(call, (text, tokens))
    check = check_token_ids if given == tokens else check_some_text
    check(given, call[given], limits)
