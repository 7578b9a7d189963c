"""The tag of a request, read and checked: its agent, session, state, sample, and how to replay it.

:mod:`hive_frontend.wire` defines its format.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, cast

from hive_frontend.wire import (
    BODY_FIELD,
    EVENTS,
    HEADER_PREFIX,
    MAX_HINT_SECONDS,
    MAX_KV_PRIORITY,
    MAX_SAMPLE,
    NAME_PATTERN,
    NAME_RULE,
    REPLAY_MODES,
    ROUTED_PREFIX,
    TAG_KEY,
    Event,
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
    expects_event: Event | None = None
    """What the session waits for after this request."""
    expects_seconds: float | None = None
    """Expected seconds until its next request."""
    kv_priority: int | None = None
    """KV of higher priority is evicted later, all else being equal."""
    retain: float | None = None
    """Seconds for which the session's KV should stay."""
    discard: bool | None = None
    """Whether the session's KV will not be used again."""

    @classmethod
    def parse(cls, mapping: Any, field: str = BODY_FIELD) -> RequestTag:
        """Read the tag of a body; ``field`` is its name for errors.

        Raises:
            RequestError: with the field and its rule, if a key is unknown or a value is invalid.
        """
        return cls._parse(as_object(field, mapping), f"{field}.", _IN_BODY)

    @classmethod
    def parse_hints(cls, mapping: Any, prefix: str = "") -> RequestTag:
        """Read hints about a session, an object with its ``session`` and the tag's fields for hints.

        ``prefix`` comes before the names of its fields in errors.

        Raises:
            RequestError: as :meth:`parse`, or if the session is missing.
        """
        tag = cls._parse(as_object(prefix.rstrip(".") or "body", mapping), prefix, _OF_HINTS)
        if tag.session is None:
            raise RequestError(f"{prefix}session", f"{NAME_RULE}, and is missing")
        if tag.sample is not None and tag.state is None:
            raise RequestError(f"{prefix}sample", "needs a state")
        alone = tag.discard and tag.expects_event is None and tag.kv_priority is None
        if tag.state is not None and not alone:
            raise RequestError(
                f"{prefix}state", "needs discard alone: other hints are about the whole session"
            )
        return tag

    @classmethod
    def _parse(cls, fields: Mapping[str, Any], prefix: str, known: Collection[str]) -> RequestTag:
        for key, value in fields.items():
            _check(f"{prefix}{shown_key(key)}", key, value, known)
        tag = cls(**flat(fields))
        _check_hints(tag, f"{prefix}retain")
        return tag

    def to_dict(self) -> dict[str, str | int | float]:
        """Return the fields that are set."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in _FIELDS)


_FIELDS = tuple(item.name for item in fields(RequestTag))
_EXPECTS = ("event", "seconds")
_IN_BODY = (*(name for name in _FIELDS if not name.startswith("expects_")), "expects")
_OF_HINTS = ("session", "state", "sample", "expects", "kv_priority", "retain", "discard")
EMPTY_TAG = RequestTag()

header_tag: ContextVar[RequestTag] = ContextVar("header_tag", default=EMPTY_TAG)
"""The tag in the headers of the current HTTP request, which applies to every engine request that it makes."""


def flat(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked tag of a body with ``expects`` as two fields: SGLang's messages carry no deeper objects."""
    if "expects" not in tag:
        return dict(tag)
    fields = dict(tag)
    return fields | {f"expects_{name}": value for name, value in fields.pop("expects").items()}


foreign_tag: ContextVar[Mapping[str, Any]] = ContextVar("foreign_tag", default=MappingProxyType({}))
"""What the current HTTP request says in other systems' fields (:mod:`hive.server.dialects`), flat."""


def tag_of_request(tag: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the tag of a request to the engine, flat: the body's, which the headers override.

    Other systems' fields apply where it is silent.  They name no session for a request with a state: its seed may
    depend on both.
    """
    fields = flat(tag or {})
    if header := header_tag.get().to_dict():
        if "expects_event" in header:
            fields.pop("expects_seconds", None)
        fields |= header
    if foreign := foreign_tag.get():
        fields = {
            name: value for name, value in foreign.items() if name != "session" or "state" not in fields
        } | fields
    return fields


def tag_in(custom_params: Any) -> dict[str, Any]:
    """Return the tag in ``custom_params``, flat, empty if absent; its fields have been checked before."""
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


def _check(field: str, name: Any, value: Any, known: Collection[str]) -> None:
    """Check a value of a body's tag by the rule of its field."""
    if name not in known:
        raise RequestError(field, f"is unknown, the fields are {', '.join(known)}")
    if name != "expects":
        _check_flat(field, name, value)
        return
    expects = as_object(field, value)
    check_known(expects, _EXPECTS, f"{field}.")
    for key in ("event", *expects):
        _check_flat(f"{field}.{key}", f"expects_{key}", expects.get(key))


def _check_flat(field: str, name: str, value: Any) -> None:
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
            _check_one_of(field, value, REPLAY_MODES)
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
        case "expects_event":
            _check_one_of(field, value, EVENTS)
        case "expects_seconds" | "retain":
            if not (_is_number(value) and 0 <= value <= MAX_HINT_SECONDS):
                raise RequestError(
                    field, f"must be a number of seconds from 0 to {MAX_HINT_SECONDS}, got {shown(value)}"
                )
        case "kv_priority":
            if type(value) is not int or not -MAX_KV_PRIORITY <= value <= MAX_KV_PRIORITY:
                raise RequestError(
                    field,
                    f"must be an integer from {-MAX_KV_PRIORITY} to {MAX_KV_PRIORITY}, got {shown(value)}",
                )
        case "discard":
            if type(value) is not bool:
                raise RequestError(field, f"must be true or false, got {shown(value)}")
        case _:
            raise RequestError(field, f"is unknown, the fields are {', '.join(_FIELDS)}")


def _check_hints(tag: RequestTag, field: str) -> None:
    """Check that hints do not contradict each other; ``field`` is the name of ``retain`` for errors."""
    if tag.retain is not None and (tag.discard or tag.expects_event == "end"):
        raise RequestError(field, "must not be combined with discard or with the end of the session")


def _check_one_of(field: str, value: Any, names: Collection[str]) -> None:
    if value not in names:
        raise RequestError(field, f"must be {' or '.join(map(repr, names))}, got {shown(value)}")


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
        value: str | int | float | bool = raw_value.decode("latin-1").strip()
        if name in found:
            raise RequestError(shown_key(header), "must not be given twice")
        text = cast(str, value)
        if name in _INTEGERS and _DECIMAL.fullmatch(text):
            value = int(text)
        elif name in _NUMBERS and _FRACTION.fullmatch(text):
            value = float(text)
        elif name == "discard" and text in ("true", "false"):
            value = text == "true"
        _check_flat(shown_key(header), name, value)
        found[name] = value
    if not found:
        return EMPTY_TAG
    tag = RequestTag(**found)
    if tag.expects_seconds is not None and tag.expects_event is None:
        raise RequestError(f"{HEADER_PREFIX}expects-seconds", f"needs {HEADER_PREFIX}expects-event")
    _check_hints(tag, f"{HEADER_PREFIX}retain")
    return tag


_HEADER_PREFIXES = (HEADER_PREFIX.encode(), ROUTED_PREFIX.encode())
_INTEGERS = ("sample", "hotspot_top_k", "kv_priority")
_NUMBERS = ("hotspot_threshold", "hotspot_decay", "expects_seconds", "retain")
_DECIMAL = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_FRACTION = re.compile(r"[0-9]{1,10}(\.[0-9]{1,17})?", re.ASCII)
