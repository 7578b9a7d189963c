"""Checks of values that are compiled before use: stop conditions, regular expressions, grammars and schemas."""

from __future__ import annotations

import json
import re
import re._parser as regex_parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Iterable
from typing import Any

from hive.server.request_checks.limits import Limits
from hive.server.request_tag import RequestError, as_object, shown


def check_stop(field: str, value: Any, limits: Limits) -> None:
    _strings(field, value, limits)


def check_stop_regex(field: str, value: Any, limits: Limits) -> None:
    for name, pattern in _strings(field, value, limits):
        try:
            with warnings.catch_warnings():
                # Ignore warnings about patterns that a future Python may interpret differently.
                warnings.simplefilter("ignore")
                re.compile(pattern)
            ways = _ways_to_match(regex_parser.parse(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            raise RequestError(name, f"must be a regular expression, got {shown(pattern)}: {error}") from None
        if ways > _MAX_WAYS:
            raise RequestError(
                name,
                "must not backtrack without bound: bound its repeats, {0,20}, or make them possessive, *+; "
                f"got {shown(pattern)}",
            )


def _strings(field: str, value: Any, limits: Limits) -> list[tuple[str, str]]:
    """Return the entries of a stop condition, a string or a list of strings, each with its name for errors."""
    if isinstance(value, list):
        entries = [(f"{field}[{index}]", item) for index, item in enumerate(value)]
    else:
        entries = [(field, value)]
    if len(entries) > limits.max_stops:
        raise RequestError(field, f"must have at most {limits.max_stops} entries, got {len(entries)}")
    for name, item in entries:
        # Every output contains the empty string, so the answer would always be empty.
        if not isinstance(item, str) or not 0 < len(item) <= limits.max_stop_length:
            raise RequestError(
                name, f"must be a string of 1 to {limits.max_stop_length} characters, got {shown(item)}"
            )
    return entries


_MAX_WAYS = 32768
_WAYS_UNBOUNDED = 1024


def _ways_to_match(pattern: Iterable[Any]) -> int:
    """Return the number of ways in which a backtracking matcher may match at one position, which each search costs.

    One unbounded repeat is affordable, a second one multiplies the ways, and a repeat of a repeat is exponential.
    Groups that do not backtrack (possessive repeats, atomic groups) count once.
    """
    ways = 1
    for operator, argument in pattern:
        match str(operator):
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, body = argument
                span = (
                    _WAYS_UNBOUNDED
                    if high >= regex_parser.MAXREPEAT
                    else min(high - low + 1, _WAYS_UNBOUNDED)
                )
                inner = _ways_to_match(body)
                if inner > 1:
                    # Each repetition may match in each of its ways.
                    repetitions = _WAYS_UNBOUNDED if high >= regex_parser.MAXREPEAT else high
                    inner = _MAX_WAYS + 1 if repetitions > 12 else inner**repetitions
                ways *= span * inner
            case "SUBPATTERN":
                ways *= _ways_to_match(argument[3])
            case "BRANCH":
                ways *= sum(_ways_to_match(branch) for branch in argument[1])
            case "ASSERT" | "ASSERT_NOT":
                ways *= _ways_to_match(argument[1])
            case "ATOMIC_GROUP":
                ways *= min(_ways_to_match(argument), _WAYS_UNBOUNDED)
            case "GROUPREF_EXISTS":
                ways *= sum(_ways_to_match(branch) for branch in argument[1:] if branch is not None)
            case "POSSESSIVE_REPEAT":
                ways *= min(_ways_to_match(argument[2]), _WAYS_UNBOUNDED)
        if ways > _MAX_WAYS:
            return _MAX_WAYS + 1
    return ways


def check_grammar(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str) or len(value) > limits.max_regex_length:
        raise RequestError(
            field, f"must be a string of at most {limits.max_regex_length} characters, got {_measured(value)}"
        )


def check_schema_text(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str) or len(value) > limits.max_schema_length:
        raise RequestError(
            field,
            f"must be a string of at most {limits.max_schema_length} characters, got {_measured(value)}",
        )
        # For SGLang, the empty string means "no grammar" and "$$ANY$$" means "any JSON".
    if value in ("", "$$ANY$$"):
        return
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            field, f"must be JSON in a string, got {shown(value)}: {shown(str(error))}"
        ) from None
    check_depth(field, schema, limits)


def check_depth(field: str, value: Any, limits: Limits) -> None:
    """Refuse JSON that is nested too deeply; a loop over levels, because recursion might overflow first."""
    level = [value]
    for _ in range(limits.max_schema_depth):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise RequestError(field, f"must be nested at most {limits.max_schema_depth} levels deep")


def check_schema(field: str, value: Any, limits: Limits) -> None:
    as_object(field, value)
    check_depth(field, value, limits)


def _measured(value: Any) -> str:
    return f"{len(value)} characters" if isinstance(value, str) else shown(value)
