"""Checks of hints about sessions between their requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hive.server.request_tag import RequestError, RequestTag, as_object, check_known, shown

MAX_HINTS = 256
"""Maximum sessions in one request."""


def hints_of(body: Any, session: str | None = None) -> list[dict[str, Any]]:
    """Return the hints in the body of ``/hive/sessions/{session}/hints``, or of ``/hive/hints`` for many sessions.

    Each is a flat tag with its session.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    fields = as_object("body", body)
    if session is not None:
        if "session" in fields:
            raise RequestError("session", "must not be given: the path names it")
        return [RequestTag.parse_hints({**fields, "session": session}).to_dict()]
    check_known(fields, ("hints",))
    hints = fields.get("hints")
    if not isinstance(hints, list) or not 1 <= len(hints) <= MAX_HINTS:
        raise RequestError("hints", f"must be a list of 1 to {MAX_HINTS} hints, got {shown(hints)}")
    return [_hint(f"hints[{at}]", hint) for at, hint in enumerate(hints)]


def _hint(name: str, hint: Any) -> dict[str, Any]:
    fields: Mapping[str, Any] = as_object(name, hint)
    return RequestTag.parse_hints(fields, f"{name}.").to_dict()
