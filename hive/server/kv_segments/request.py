"""What a request asks of the segment store, as it travels from the HTTP process to the scheduler.

In a body it is ``custom_params.hive_segments``, which clients may set; in the scheduler's it is
``custom_params.hive_kv``, which only Hive sets, and in which everything has been checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hive.server.kv_segments.corrector_names import DEFAULT, check_corrector
from hive.server.request_tag import RequestError, shown, shown_key

SEGMENTS_FIELD = "hive_segments"
"""Key of ``custom_params`` that clients set."""
KV_FIELD = "hive_kv"
"""Key of ``custom_params`` that Hive sets."""
Context = Literal["producer", "standalone", "neutral"]
"""Behind what a segment was encoded: whatever its producer had before it, nothing, or the server's neutral prefix."""
CONTEXTS: tuple[str, ...] = get_args(Context)
MAX_SPANS = 4096


@dataclass(frozen=True, slots=True)
class WireSpan:
    """Tokens that may be placed."""

    start: int
    end: int
    position: int
    name: str
    """A context, under which their encoding is found by its tokens, or ``message:ID``."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Tokens whose encoding is stored when the request ends."""

    start: int
    end: int | None
    """None: up to the last token whose KV there is."""
    name: str


@dataclass(frozen=True, slots=True)
class KvRequest:
    """What a request asks for."""

    spans: tuple[WireSpan, ...] = ()
    keeps: tuple[Keep, ...] = ()
    shift: int = 0
    """Of a choreography: position minus index, for the tokens behind the last span."""
    choreographed: bool = False
    """Whether its tokens are at positions of their own, so that it must never meet the exact radix tree."""
    group: str = ""
    """Of a call in a list: the list's name."""
    calls: int = 1
    """In that list."""
    extra_key: str = ""
    """What a client keeps its declared segments apart by, as it does its prompts."""
    corrector: Any = DEFAULT
    """As :func:`~hive.server.kv_segments.correctors.corrector_of` takes it."""

    def to_wire(self) -> str:
        """As text: what SGLang sends to its scheduler may not be nested."""
        return json.dumps(
            {
                "spans": [[span.start, span.end, span.position, span.name] for span in self.spans],
                "keeps": [[keep.start, keep.end, keep.name] for keep in self.keeps],
                "shift": self.shift,
                "choreographed": self.choreographed,
                "group": self.group,
                "calls": self.calls,
                "extra_key": self.extra_key,
                "corrector": self.corrector,
            }
        )

    @classmethod
    def of_wire(cls, text: str) -> KvRequest:
        """Back from what :meth:`to_wire` made."""
        wire = json.loads(text)
        return cls(
            spans=tuple(WireSpan(*span) for span in wire["spans"]),
            keeps=tuple(Keep(*keep) for keep in wire["keeps"]),
            shift=wire["shift"],
            choreographed=wire["choreographed"],
            group=wire["group"],
            calls=wire["calls"],
            extra_key=wire["extra_key"],
            corrector=wire["corrector"],
        )


def spans_request(spec: Any, tokens: int, field: str, *, corrector: Any = DEFAULT) -> KvRequest:
    """Check what a client sent as ``hive_segments``.

    Args:
        spec: an object with ``spans``, ``context`` (of spans that name none), ``corrector`` and ``keep_output``, all
            optional.
        tokens: in the prompt.
        field: what messages call the object.
        corrector: of requests that name none.

    Raises:
        RequestError: naming the field at fault and its rule.
    """
    if not isinstance(spec, Mapping):
        raise RequestError(field, f"must be an object, got {shown(spec)}")
    for key in spec:
        if key not in _FIELDS:
            raise RequestError(
                f"{field}.{shown_key(key)}", f"is unknown, the fields are {', '.join(_FIELDS)}"
            )
    corrector = spec.get("corrector", corrector)
    check_corrector(corrector, f"{field}.corrector")
    keep_output = spec.get("keep_output", False)
    if not isinstance(keep_output, bool):
        raise RequestError(f"{field}.keep_output", f"must be true or false, got {shown(keep_output)}")
    context = _context(spec.get("context", "producer"), f"{field}.context")
    spans = _spans(spec.get("spans", []), tokens, context, f"{field}.spans")
    keeps = [Keep(span.start, span.end, span.name) for span in spans if span.name == "producer"]
    if keep_output:
        keeps.append(Keep(tokens, None, "producer"))
    return KvRequest(tuple(spans), tuple(keeps), corrector=corrector)


_FIELDS = ("spans", "context", "corrector", "keep_output")


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
        if not isinstance(item, Mapping):
            raise RequestError(where, f"must be an object with start and end, got {shown(item)}")
        for key in item:
            if key not in ("start", "end", "context"):
                raise RequestError(
                    f"{where}.{shown_key(key)}", "is unknown, the fields are start, end, context"
                )
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
            field, f"must be an integer from 0 to {tokens}, the tokens of the prompt, got {shown(value)}"
        )
    return value
