"""Sessions of agents as block ids: what the public traces of coding agents contain, and what a server records.

Three formats are read:

- a folder of the public corpus callanjfox/kv-cache-tester: one JSON file per session, ``hash_ids`` for each request;
- the same, compact: JSON lines (``.jsonl`` or ``.jsonl.xz``), a session a line, where ``hash_ids`` is a difference to
  the request before: ``kept`` blocks of it, then the ids ``new``;
- JSON lines of ``--hive-record-traffic``: a request a line, in the order of their ends.

Block ids of the corpus are local to their session (unless it says otherwise), so they are made unique here.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.traces.trace import Tokens
from hive.server.eviction.hints import Event

Half = Literal["all", "build", "check"]
MAX_THINK_S = 600.0
"""Longer pauses are cut to this: nobody expects their KV to survive a night."""
_EVENTS: dict[str | None, Event] = {
    "tool_use": "tool",
    "tool_calls": "tool",
    "end_turn": "human",
    "stop": "human",
}
"""What a server concludes from the reason why an answer ended."""


@dataclass
class Call:
    """One request of a session."""

    blocks: Tokens
    """Ids of the full blocks of its prompt."""
    service_s: float
    think_s: float
    """Seconds from the end of the session's previous request to its arrival."""
    agent: str
    stopped: Event | None
    """What the server can tell from the end of the answer; None: nothing."""
    asks: Event
    """What brought this request about: a tool's result or a person."""
    output: int = 1
    """Tokens."""
    children: list[Session] = field(default_factory=list)
    """Subagents that start when it ends, and for which the session's next request waits."""


@dataclass
class Session:
    """Requests one after another."""

    name: str
    calls: list[Call]
    starts_s: float | None = None
    """When it starts, as recorded or after its parent's call; None: when there is a place for it."""
    ends: bool = True
    """Whether the server is told when it ends."""

    def everywhere(self) -> Iterator[tuple[Session, Call]]:
        """All calls, those of subagents included."""
        for call in self.calls:
            yield self, call
            for child in call.children:
                yield from child.everywhere()


def load_sessions(path: Path, half: Half = "all") -> list[Session]:
    """Read the sessions of a file or folder.

    Raises `ValueError` if it is none of the formats, and `OSError` if it cannot be read.
    """
    try:
        if path.is_dir():
            files = sorted(path.glob("*.json"))
            sessions = [_of_corpus(json.loads(file.read_text()), file.name) for file in files]
        else:
            with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as lines:
                sessions = _of_lines(map(json.loads, lines))
    except (lzma.LZMAError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} is no trace of sessions: {error!r}") from None
    sessions = [session for session in sessions if session.calls and half in ("all", half_of(session.name))]
    if not sessions:
        raise ValueError(f"{path.name} has no sessions (half: {half})")
    return sessions


def half_of(name: str) -> Half:
    """The half of a corpus that a session belongs to: to build a policy with, or to check it.

    It is the second bit of the name's SHA-256, because files may have been split by the first one already.
    """
    return "check" if hashlib.sha256(name.encode()).digest()[-1] & 2 else "build"


def _of_lines(lines: Iterable[dict[str, Any]]) -> list[Session]:
    sessions: list[Session] = []
    recorded: list[dict[str, Any]] = []
    for line in lines:
        if "requests" in line:
            sessions.append(_of_corpus(line, str(line["name"])))
        else:
            recorded.append(line)
    return sessions + _of_record(recorded)


def _of_corpus(content: dict[str, Any], name: str) -> Session:
    session = Session(name, _calls(content["requests"], name, "main"))
    if content.get("hash_id_scope") != "global":
        # A different name has different ids, up to collisions among 2**42 of them.
        offset = int.from_bytes(hashlib.sha256(name.encode()).digest()[:5]) << 22
        for _, call in session.everywhere():
            call.blocks = array("q", (np.frombuffer(call.blocks, np.int64) + offset).tobytes())
    return session


def _calls(requests: Iterable[dict[str, Any]], name: str, agent: str) -> list[Call]:
    calls: list[Call] = []
    before, ended = array("q"), 0.0
    for request in requests:
        if request["type"] == "subagent":
            child = f"{name}/{request['agent_id']}"
            began = request["t"] - request.get("duration_ms", 0) / 1000
            inner = _calls(request["requests"], child, request.get("subagent_type") or "subagent")
            if calls and inner:
                calls[-1].children.append(Session(child, inner, min(max(0.0, began - ended), MAX_THINK_S)))
            continue
        before = _blocks(request, before)
        service = request.get("api_time", request.get("ttft", 0.0))
        think = request.get("think_time", max(0.0, request["t"] - ended))
        calls.append(
            Call(
                before,
                service,
                min(think, MAX_THINK_S),
                agent,
                _EVENTS.get(request.get("stop")),
                "tool" if "tool_result" in request.get("input_types", ()) else "human",
                request.get("out", 1),
            )
        )
        ended = request["t"] + service
    return calls


def _blocks(request: dict[str, Any], before: Tokens) -> Tokens:
    known: list[int] | None = request.get("hash_ids")
    return array("q", known) if known is not None else before[: request["kept"]] + array("q", request["new"])


def _of_record(lines: list[dict[str, Any]]) -> list[Session]:
    """Sessions of a server's record. A request without a session is a session of its own."""
    sessions: dict[str, Session] = {}
    before: dict[str, tuple[Tokens, float]] = {}
    began = min((line["t"] for line in lines), default=0.0)
    for number, line in enumerate(lines):
        arrived = line["t"] - began
        if "ended" in line:
            if line["ended"] in sessions:
                sessions[line["ended"]].ends = True
            continue
        name = line["session"] or f"anonymous {number}"
        session = sessions.setdefault(name, Session(name, [], arrived, ends=False))
        blocks, ended = before.get(name, (array("q"), arrived))
        blocks = _blocks(line, blocks)
        before[name] = blocks, arrived + line["api_time"]
        think = min(max(0.0, arrived - ended), MAX_THINK_S)
        agent = line["agent"] or "anonymous"
        session.calls.append(Call(blocks, line["api_time"], think, agent, None, "tool", line["out"]))
    return sorted(sessions.values(), key=lambda session: session.starts_s or 0.0)
