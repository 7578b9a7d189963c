"""What a request asks of the segment store, in the form that travels from the HTTP process to the scheduler.

Clients set ``custom_params.hive_segments``.  The HTTP process checks it and sends the scheduler
``custom_params.hive_kv``, which only Hive sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from hive.server.kv_segments.correctors import DEFAULT, corrector_of
from hive.server.request_tag import RequestError, as_object, check_known, shown

SEGMENTS_FIELD = "hive_segments"
"""Key of ``custom_params`` that clients set."""
KV_FIELD = "hive_kv"
"""Key of ``custom_params`` that only Hive sets."""
Context = Literal["producer", "standalone", "neutral"]
"""The context that a segment was encoded in: that of its producer, none, or the server's neutral prefix."""
CONTEXTS: tuple[str, ...] = get_args(Context)
MAX_SPANS = 4096


@dataclass(frozen=True, slots=True)
class WireSpan:
    """A run of tokens that may be placed."""

    start: int
    end: int
    position: int
    name: str
    """A context, in which the encoding is found by its tokens; or ``message:ID``."""


@dataclass(frozen=True, slots=True)
class Keep:
    """A run of tokens whose encoding is stored when the request ends."""

    start: int
    end: int | None
    """None: up to the last token that has KV."""
    name: str


@dataclass(frozen=True, slots=True)
class KvRequest:
    """A request to the segment store."""

    spans: tuple[WireSpan, ...] = ()
    keeps: tuple[Keep, ...] = ()
    shift: int = 0
    """In a choreography: position minus index of the tokens behind the last span."""
    choreographed: bool = False
    """Whether its tokens have positions other than their indices, so that it must bypass the radix tree."""
    group: str = ""
    """Name of the list of calls that this one belongs to, if any."""
    calls: int = 1
    """Number of calls in that list."""
    extra_key: str = ""
    """Keeps the client's declared segments apart, like the extra key of its prompts."""
    corrector: Any = DEFAULT
    """A specification as in :func:`~hive.server.kv_segments.correctors.corrector_of`."""

    def to_wire(self) -> str:
        """Return the request as JSON text: SGLang does not send nested values to its scheduler."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_wire(cls, text: str) -> KvRequest:
        """Return the request that :meth:`to_wire` has written."""
        return msgspec.json.decode(text, type=cls)


def spans_request(spec: Any, tokens: int, field: str, *, corrector: Any = DEFAULT) -> KvRequest:
    """Check what a client sent as ``hive_segments``.

    Args:
        spec: an object with ``spans``, ``context`` (the default of the spans), ``corrector`` and ``keep_output``, all
            optional.
        tokens: number of tokens of the prompt.
        field: the name of the object in error messages.
        corrector: the default.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    check_known(as_object(field, spec), ("spans", "context", "corrector", "keep_output"), f"{field}.")
    corrector = spec.get("corrector", corrector)
    corrector_of(corrector, f"{field}.corrector")
    keep_output = spec.get("keep_output", False)
    if not isinstance(keep_output, bool):
        raise RequestError(f"{field}.keep_output", f"must be true or false, got {shown(keep_output)}")
    context = _context(spec.get("context", "producer"), f"{field}.context")
    spans = _spans(spec.get("spans", []), tokens, context, f"{field}.spans")
    keeps = [Keep(span.start, span.end, span.name) for span in spans if span.name == "producer"]
    if keep_output:
        keeps.append(Keep(tokens, None, "producer"))
    return KvRequest(tuple(spans), tuple(keeps), corrector=corrector)


def _context(value: Any, field: str) -> str:
    if value not in CONTEXTS:
        raise RequestError(field, f"must be {' or '.join(map(repr, CONTEXTS))}, got {shown(value)}")
    return str(value)


def _spans(value: Any, tokens: int, default: str, field: str) -> list[WireSpan]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RequestError(field, f"must be a list of objects, got {shown(value)}")
    if len(value) > MAX_SPANS:
        raise RequestError(field, f"must have at most {MAX_SPANS} spans, got {len(value)}")
    spans: list[WireSpan] = []
    behind = 0
    for at, item in enumerate(value):
        where = f"{field}[{at}]"
        check_known(as_object(where, item), ("start", "end", "context"), f"{where}.")
        start, end = (_index(item.get(name), f"{where}.{name}", tokens) for name in ("start", "end"))
        if start >= end:
            raise RequestError(f"{where}.end", f"must be above start, which is {start}, got {end}")
        if start < behind:
            raise RequestError(
                f"{where}.start", f"must be at least {behind}, the end of the span before it, got {start}"
            )
        context = _context(item.get("context", default), f"{where}.context")
        spans.append(WireSpan(start, end, start, context))
        behind = end
    return spans


def _index(value: Any, field: str, tokens: int) -> int:
    if type(value) is not int or not 0 <= value <= tokens:
        raise RequestError(
            field, f"must be an integer from 0 to {tokens}, the length of the prompt, got {shown(value)}"
        )
    return value
