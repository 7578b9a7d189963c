"""The tag of a request, read and checked: its agent, session, state, sample, and how to replay it.

:mod:`hive_frontend.wire` defines its format.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, cast

from hive_frontend.wire import (
    BODY_FIELD,
    HEADER_PREFIX,
    MAX_SAMPLE,
    NAME_PATTERN,
    NAME_RULE,
    REPLAY_MODES,
    ROUTED_PREFIX,
    TAG_KEY,
    Replay,
    is_name,
)

_ECHO_CHARACTERS = 80


class RequestError(ValueError):
    """A request that must not reach the engine; the message names the invalid field and its rule in one sentence."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field} {rule}")
        self.field = field
        self.rule = rule


@contextmanager
def within_call(at: int, *, listed: bool = True) -> Iterator[None]:
    """Name the fields of a :class:`RequestError` as those of call ``at`` of the body's list of calls, if it has one."""
    try:
        yield
    except RequestError as error:
        if not listed:
            raise
        raise RequestError(f"calls[{at}].{error.field}", error.rule) from None


def shown(value: Any) -> str:
    """Return an untrusted value in a form for error messages: escaped, and short however large the value is."""
    match value:
        case str():
            text = repr(value[:_ECHO_CHARACTERS])
        case int() if value.bit_length() > 256:
            # Python refuses to print integers of thousands of digits.
            return f"an integer of {value.bit_length()} bits"
        # A container's repr is as large as the container, and a body may have megabytes.
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)}"
        case None | bool() | int() | float():
            text = repr(value)
        case _:
            return f"a value of type {type(value).__name__}"
    return text if len(text) <= _ECHO_CHARACTERS else f"{text[: _ECHO_CHARACTERS - 1]}…"


@dataclass(frozen=True)
class RequestTag:
    """The tag; a field that the request did not set is None."""

    agent: str | None = None
    session: str | None = None
    state: str | None = None
    sample: int | None = None
    replay: Replay | None = None
    tenant: str | None = None
    scope: str | None = None
    """Within a tenant, separates the distributions and used-up samples of its requests, and nothing else."""
    hotspot_threshold: float | None = None
    """Resample steps with a score above this; the others keep the token of the cached output."""
    hotspot_top_k: int | None = None
    """Resample this many steps, those with the highest scores."""
    hotspot_decay: float | None = None
    """Steps over which a score falls by a factor of e."""

    @classmethod
    def parse(cls, mapping: Any, field: str = BODY_FIELD) -> RequestTag:
        """Read the tag of a body; ``field`` is its name for errors.

        Raises:
            RequestError: with the field and its rule, if a key is unknown or a value is invalid.
        """
        fields = as_object(field, mapping)
        return cls(
            **{key: _checked(f"{field}.{shown_key(key)}", key, value) for key, value in fields.items()}
        )

    def to_dict(self) -> dict[str, str | int | float]:
        """Return the fields that are set."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in _FIELDS)


_FIELDS = tuple(item.name for item in fields(RequestTag))
EMPTY_TAG = RequestTag()

header_tag: ContextVar[RequestTag] = ContextVar("header_tag", default=EMPTY_TAG)
"""The tag in the headers of the current HTTP request, which applies to every engine request that it makes."""


def tag_in(custom_params: Any) -> dict[str, Any]:
    """Return the tag in ``custom_params`` in wire format, empty if absent; its fields have been checked before."""
    tag = (custom_params or {}).get(TAG_KEY)
    return tag if isinstance(tag, dict) else {}


def shown_key(key: Any) -> str:
    """Return a key of an untrusted object for use in a field's path."""
    text = key if isinstance(key, str) else repr(key)
    return text if NAME_PATTERN.fullmatch(text) else shown(text)


def as_object(field: str, value: Any) -> Mapping[str, Any]:
    """Return the value of a field, a JSON object.

    Raises:
        RequestError: if it is something else.
    """
    if not isinstance(value, Mapping):
        raise RequestError(field, f"must be an object, got {shown(value)}")
    return value


def check_known(fields: Mapping[str, Any], known: Collection[str], prefix: str = "") -> None:
    """Check that an object, whose name with a dot is ``prefix``, has no fields but these.

    Raises:
        RequestError: with the first unknown field.
    """
    for name in fields:
        if name not in known:
            raise RequestError(f"{prefix}{shown_key(name)}", f"is unknown, the fields are {', '.join(known)}")


def _checked(field: str, name: Any, value: Any) -> Any:
    """Return a value of the tag after checking it by the rule of its field."""
    match name:
        case "agent" | "session" | "state" | "tenant" | "scope":
            if not is_name(value):
                raise RequestError(field, f"{NAME_RULE}, got {shown(value)}")
        case "sample":
            if type(value) is not int or not 0 <= value <= MAX_SAMPLE:
                raise RequestError(
                    field, f"must be an integer between 0 and {MAX_SAMPLE}, got {shown(value)}"
                )
        case "replay":
            if value not in REPLAY_MODES:
                names = " or ".join(map(repr, REPLAY_MODES))
                raise RequestError(field, f"must be {names}, got {shown(value)}")
        case "hotspot_threshold":
            if not (_is_number(value) and 0.0 <= value < 1.0):
                raise RequestError(field, f"must be a number from 0 to below 1, got {shown(value)}")
        case "hotspot_top_k":
            if type(value) is not int or not 1 <= value <= MAX_SAMPLE:
                raise RequestError(
                    field, f"must be an integer between 1 and {MAX_SAMPLE}, got {shown(value)}"
                )
        case "hotspot_decay":
            if not (_is_number(value) and 0.0 < value <= 1e9):
                raise RequestError(field, f"must be a number of steps above 0, got {shown(value)}")
        case _:
            raise RequestError(field, f"is unknown, the fields are {', '.join(_FIELDS)}")
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def tag_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> RequestTag:
    """Read the tag in raw ASGI headers: pairs of bytes, names in lower case.

    Raises:
        RequestError: with the header and its rule, if it is unknown, invalid or given twice.
    """
    found: dict[str, Any] = {}
    for raw_name, raw_value in headers:
        if not raw_name.startswith(_HEADER_PREFIXES):
            continue
        header = raw_name.decode("latin-1")
        # Header names have dashes for underscores.
        name = header.partition("hive-")[2].replace("-", "_")
        value: str | int | float = raw_value.decode("latin-1").strip()
        if name in found:
            raise RequestError(shown_key(header), "must not be given twice")
        if name in _INTEGERS and _DECIMAL.fullmatch(cast(str, value)):
            value = int(value)
        elif name in _NUMBERS and _FRACTION.fullmatch(cast(str, value)):
            value = float(value)
        found[name] = _checked(shown_key(header), name, value)
    return RequestTag(**found) if found else EMPTY_TAG


_HEADER_PREFIXES = (HEADER_PREFIX.encode(), ROUTED_PREFIX.encode())
_INTEGERS = ("sample", "hotspot_top_k")
_NUMBERS = ("hotspot_threshold", "hotspot_decay")
_DECIMAL = re.compile(r"[0-9]{1,10}", re.ASCII)
_FRACTION = re.compile(r"[0-9]{1,10}(\.[0-9]{1,17})?", re.ASCII)
