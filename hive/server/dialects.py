"""What requests say about their sessions in the fields of other systems.

SGLang, NVIDIA Dynamo and coding agents name sessions in headers and fields of their own.  They are read here for the
accounting of KV, where a request has no tag that says the same.  They never change how a request is sampled, and a
value that cannot be read is ignored: its own system may allow it.  ``docs/hints.md`` lists them with their sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import orjson
from hive_frontend.wire import MAX_KV_PRIORITY, is_name

SESSION_HEADERS = (
    "x-dynamo-session-id",
    # Claude Code: a subagent has an id of its own.
    "x-claude-code-agent-id",
    "x-claude-code-session-id",
    # Codex, newest first.
    "thread-id",
    "session-id",
    "session_id",
    # OpenCode.
    "x-session-id",
)
"""Headers that name a session; the first that a request has counts."""

FINAL_HEADER = "x-dynamo-session-final"
"""Header that marks the last request of a session."""

_RANK = {name.encode(): rank for rank, name in enumerate(SESSION_HEADERS)}
_FINAL = FINAL_HEADER.encode()
_TRUE = frozenset({b"1", b"true", b"yes", b"on"})

_SESSION_FIELDS: tuple[tuple[str, ...], ...] = (
    ("nvext", "agent_context", "trajectory_id"),
    ("nvext", "agent_context", "session_id"),
    ("nvext", "session_control", "session_id"),
    ("session_id",),
    ("session_params", "id"),
)
"""Paths of fields that name a session; the first that a body has counts."""

_CLAUDE_CODE = re.compile(r".*_session_([0-9a-fA-F-]{8,64})")
"""The user id of older versions: hashes of the user and the account, and then the session."""
_CACHE_KEY = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|ses_[A-Za-z0-9]{8,64}")
"""Prompt cache keys that are sessions of Codex or OpenCode.  Other clients share a key between dialogues."""

_FIELDS = frozenset({"nvext", "session_id", "session_params", "metadata", "prompt_cache_key"})
_SIGNS = tuple(f'"{name}"'.encode() for name in _FIELDS)
"""A body that contains none of these has none of the fields, and need not be parsed."""


def foreign_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Return what the raw headers say, as fields of a flat tag."""
    best = len(SESSION_HEADERS)
    found: dict[str, Any] = {}
    for name, value in headers:
        rank = _RANK.get(name, best)
        if rank < best and (session := _session(value.decode("latin-1"))) is not None:
            best, found["session"] = rank, session
        elif name == _FINAL and value.strip().lower() in _TRUE:
            found["expects_event"] = "end"
    return found


def foreign_text(body: bytes) -> dict[str, Any]:
    """Return what a body says that nobody has parsed; nothing if it is not a JSON object."""
    if not any(sign in body for sign in _SIGNS):
        return {}
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return foreign_body(parsed) if isinstance(parsed, dict) else {}


def foreign_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a body says, as fields of a flat tag."""
    found: dict[str, Any] = {}
    if _FIELDS.isdisjoint(body):
        return found
    named = (*(_at(body, path) for path in _SESSION_FIELDS), _claude_code(body), _cache_key(body))
    if (session := next(filter(None, map(_session, named)), None)) is not None:
        found["session"] = session
    priority = _at(body, ("nvext", "agent_hints", "priority"))
    if type(priority) is int:
        found["kv_priority"] = max(-MAX_KV_PRIORITY, min(MAX_KV_PRIORITY, priority))
    if (
        _at(body, ("nvext", "agent_context", "trajectory_final")) is True
        or _at(body, ("nvext", "session_control", "action")) == "close"
    ):
        found["expects_event"] = "end"
    return found


def _at(body: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def _claude_code(body: Mapping[str, Any]) -> Any:
    """Return the session in the user id of Claude Code: JSON with it, or a text that ends in it."""
    user = _at(body, ("metadata", "user_id"))
    if not isinstance(user, str):
        return None
    if user.startswith("{"):
        try:
            return _at(orjson.loads(user), ("session_id",))
        except orjson.JSONDecodeError:
            return None
    match = _CLAUDE_CODE.fullmatch(user)
    return match and match[1]


def _cache_key(body: Mapping[str, Any]) -> Any:
    key = body.get("prompt_cache_key")
    return key if isinstance(key, str) and _CACHE_KEY.fullmatch(key) else None


def _session(value: Any) -> str | None:
    """Return a name for a foreign session: its own, or a hash of it if Hive's rule for names forbids it."""
    if not isinstance(value, str) or not (name := value.strip()):
        return None
    if is_name(name):
        return name
    return f"foreign-{blake2b(name.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"
