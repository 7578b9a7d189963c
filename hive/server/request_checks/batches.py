"""Checks that depend on how many prompts a request has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hive.server.kv_segments.request import SEGMENTS_FIELD, spans_request
from hive.server.kv_segments.separator import SEPARATOR
from hive.server.request_checks.fields import check_name, check_token_ids
from hive.server.request_checks.limits import Check, Limits
from hive.server.request_checks.parameters import ROUTING_PER_PROMPT
from hive.server.request_tag import RequestError, shown

WARM_UP_RID = "HIVE_WARM_UP"
"""Prefix of the ids of the server's warm-up requests."""


def count_prompts(
    field: str, value: Any, limits: Limits, *, texts: bool = True, ids: bool = True
) -> tuple[int, bool]:
    """Check a prompt; return the number of prompts, and whether they came as a list."""
    kinds = " or ".join((["text"] if texts else []) + (["a list of token ids"] if ids else []))
    if isinstance(value, str) and value and texts:
        return 1, False
    if not isinstance(value, list) or not value:
        raise RequestError(field, f"must be {kinds}, or a list of such, and not empty, got {shown(value)}")
    if ids and not isinstance(value[0], str | list):
        check_token_ids(field, value, limits)
        return 1, False
    if len(value) > limits.max_batch:
        raise RequestError(field, f"must have at most {limits.max_batch} prompts, got {len(value)}")
    of_ids = ids and isinstance(value[0], list)
    for index, item in enumerate(value):
        if of_ids:
            check_token_ids(f"{field}[{index}]", item, limits)
        elif not texts or not isinstance(item, str) or not item:
            raise RequestError(f"{field}[{index}]", f"must be {kinds}, and not empty, got {shown(item)}")
        elif limits.kv_segments and SEPARATOR in item:
            raise RequestError(
                f"{field}[{index}]", f"must not have {SEPARATOR} in a list: send one request for each prompt"
            )
    return len(value), True


def only_one_of(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return which of some fields is given; refuse several, and none."""
    given = [name for name in names if fields.get(name) is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        first, *others = names
        raise RequestError(first, f"or {' or '.join(others)} must be given, and only one of them, got {got}")
    return given[0]


def check_all(fields: Mapping[str, Any], checks: Mapping[str, Check], limits: Limits) -> None:
    for name, value in fields.items():
        if value is not None and (check := checks.get(name)):
            check(name, value, limits)


def check_all_per_prompt(
    fields: Mapping[str, Any], checks: Mapping[str, Check], size: int | None, limits: Limits
) -> None:
    for name, check in checks.items():
        if (value := fields.get(name)) is not None:
            _check_per_prompt(name, value, size, check, limits)


def _check_per_prompt(name: str, value: Any, size: int | None, check: Check, limits: Limits) -> None:
    """Check a field that is one value, or in a batch possibly a list with one value per prompt."""
    if not isinstance(value, list):
        check(name, value, limits)
    elif size is None:
        raise RequestError(name, "must be a single value for a single prompt, got a list")
    elif len(value) != size:
        raise RequestError(name, f"must have one value per prompt, got {len(value)} for {size} prompts")
    else:
        for index, item in enumerate(value):
            # Null means "none" for names and addresses; the other fields SGLang computes with.
            if item is not None or name not in ROUTING_PER_PROMPT:
                check(f"{name}[{index}]", item, limits)


def check_fanout(field: str, prompts: int, n: int | None, limits: Limits) -> None:
    if prompts * (n or 1) > limits.max_batch:
        raise RequestError(
            field, f"times the number of prompts must be at most {limits.max_batch}, got {n} times {prompts}"
        )


def check_rid(rid: Any, size: int | None, limits: Limits) -> None:
    """Check request ids; ``size`` is the number of prompts of a batch, None for a single prompt."""
    if rid is None:
        return
    if isinstance(rid, list):
        if size is None:
            raise RequestError("rid", "must be a string for a single prompt, got a list")
        for index, item in enumerate(rid):
            check_name(f"rid[{index}]", item, limits)
        if len(rid) != size or len(set(rid)) != size:
            raise RequestError(
                "rid", f"must have one distinct name per prompt, got {len(rid)} for {size} prompts"
            )
    else:
        check_name("rid", rid, limits)


def check_segments(field: str, custom_params: Any, ids: Any, size: int | None) -> None:
    """Check that declared spans lie within the prompt; other fields are checked with the sampling parameters.

    Args:
        field: the name of the custom parameters for errors.
        custom_params: those of the request, or of one of its prompts.
        ids: the token ids of the prompt; None if it is text.
        size: the number of prompts of a batch; None for a single prompt.
    """
    spec = (custom_params or {}).get(SEGMENTS_FIELD)
    if spec is None:
        return
    field = f"{field}.{SEGMENTS_FIELD}"
    if size is not None:
        raise RequestError(field, "must not be set for a batch: send one request per prompt")
    if ids is not None:
        spans_request(spec, len(ids), field)
    elif spec.get("spans"):
        raise RequestError(
            f"{field}.spans", f"needs a prompt of token ids; in text, put {SEPARATOR} between segments"
        )


def check_no_probe(rid: Any, field: str = "rid") -> None:
    for item in rid if isinstance(rid, list) else [rid]:
        for mark in ("HEALTH_CHECK", WARM_UP_RID):
            if isinstance(item, str) and item.startswith(mark):
                raise RequestError(
                    field, f"must not begin with {mark}, which marks the server's own requests"
                )


def check_min_tokens(
    fields: Mapping[str, Any], low_name: str, high_names: Iterable[str], prefix: str = ""
) -> None:
    low = fields.get(low_name)
    high_name, high = next(((name, fields[name]) for name in high_names if fields.get(name)), ("", None))
    if low is not None and high is not None and low > high:
        raise RequestError(prefix + low_name, f"must not exceed {high_name}, got {low} and {high}")
