"""A record of a server's traffic for replays: who asked when, and which prompts share KV, without any text.

The file is JSON lines, one for each request, in the order of their ends:

- ``t``: when it arrived, in seconds since 1970; ``api_time``: seconds until it ended;
- ``agent``, ``session``, ``tenant``: hashes of the names, null where there is none;
- ``in``, ``out``: tokens of the prompt and of the answer; ``stop``: how it ended (stop, length, abort);
- ``kept``, ``new``: the hashes of the prompt's full blocks of 64 tokens: so many of the session's previous request,
  then new ones. A block's hash depends on all tokens before it.

A session whose client has ended it has a line with ``t`` and ``ended``, its hash.

All hashes are keyed with random bytes that are drawn at the start and never written, so nobody can test what a prompt
said.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import secrets
import threading
import time
from array import array
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

BLOCK = 64
"""Tokens that have one hash."""
MAX_WAITING = 1024
"""Requests that may wait to be written; more are not recorded."""
MAX_WAITING_TOKENS = 2**24
"""Tokens of their prompts together: 128 MB."""
MAX_SESSIONS = 1024
"""Sessions whose last prompt is remembered, as hashes; a forgotten one is written in full once more."""
MAX_BYTES = 2**33
"""Of the file."""
_DIGEST = 6
"""Bytes of a hash: two of a million blocks are equal with a probability of 0.2%."""


class Ended(NamedTuple):
    """A request that has ended."""

    arrived: float
    """By ``time.monotonic()``, like the next one."""
    ended: float
    agent: str | None
    session: str | None
    tenant: str | None
    prompt: array[int]
    output: int
    stop: str


class SessionEnd(NamedTuple):
    """A session that its client has ended."""

    at: float
    session: str


class TrafficRecord:
    """Appends to a file in a thread of its own, so that no disk can slow down or stop the server."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Raises `OSError` if the file cannot be opened."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._path, self._max_bytes = path, max_bytes
        self._key = secrets.token_bytes(32)
        self._clock = time.time() - time.monotonic()
        self._sessions: OrderedDict[str, array[int]] = OrderedDict()
        self._waiting: queue.Queue[Ended | SessionEnd | None] = queue.Queue(MAX_WAITING)
        self._failed = False
        self._recorded = 0
        # Counted by the thread that writes, and by the one that adds.
        self._unwritten = self._dropped = 0
        self._tokens_taken = self._tokens_added = 0
        self._thread = threading.Thread(target=self._write_all, name="hive-traffic-record", daemon=True)
        self._thread.start()

    def add(self, event: Ended | SessionEnd) -> None:
        """Record something soon; never waits."""
        tokens = len(event.prompt) if isinstance(event, Ended) else 0
        try:
            if self._tokens_added - self._tokens_taken + tokens > MAX_WAITING_TOKENS:
                raise queue.Full
            self._waiting.put_nowait(event)
            self._tokens_added += tokens
        except queue.Full:
            self._dropped += 1

    def end_session(self, session: str) -> None:
        """Record that a client has ended a session."""
        self.add(SessionEnd(time.monotonic(), session))

    def close(self) -> None:
        """Write what is waiting, and close the file."""
        self._waiting.put(None)
        self._thread.join()
        os.close(self._file)

    def summary(self) -> dict[str, int]:
        """Lines in the file, and lines missing in it because the disk is full or slower than the server."""
        return {"recorded": self._recorded, "lost": self._unwritten + self._dropped}

    def _write_all(self) -> None:
        while (event := self._waiting.get()) is not None:
            self._tokens_taken += len(event.prompt) if isinstance(event, Ended) else 0
            if self._failed:
                self._unwritten += 1
                continue
            try:
                line = self._line(event) if isinstance(event, Ended) else self._end(event)
                self._write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            except Exception as error:  # whatever it is, it must not matter to the server
                self._failed = True
                self._unwritten += 1
                logger.warning(
                    "Hive: the record of traffic %s ends here, after %d lines; requests are still served: %s",
                    self._path,
                    self._recorded,
                    error,
                )
            else:
                self._recorded += 1

    def _write(self, line: bytes) -> None:
        """Write a whole line or nothing of it."""
        size = os.fstat(self._file).st_size
        if size + len(line) > self._max_bytes:
            raise OSError(f"it has reached {self._max_bytes:,} bytes")
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            if written:
                os.truncate(self._file, size)
            raise

    def _line(self, request: Ended) -> dict[str, Any]:
        blocks = self._blocks(request.prompt)
        session = self._name("session", request.session)
        kept = 0
        if session is not None:
            before = self._sessions.pop(session, array("q"))
            for one, other in zip(before, blocks, strict=False):
                if one != other:
                    break
                kept += 1
            self._sessions[session] = blocks
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return {
            "t": round(self._clock + request.arrived, 3),
            "api_time": round(request.ended - request.arrived, 3),
            "agent": self._name("agent", request.agent),
            "session": session,
            "tenant": self._name("tenant", request.tenant),
            "in": len(request.prompt),
            "out": request.output,
            "stop": request.stop,
            "kept": kept,
            "new": blocks[kept:].tolist(),
        }

    def _end(self, event: SessionEnd) -> dict[str, Any]:
        session = self._name("session", event.session)
        assert session is not None
        self._sessions.pop(session, None)
        return {"t": round(self._clock + event.at, 3), "ended": session}

    def _blocks(self, prompt: array[int]) -> array[int]:
        tokens, width = memoryview(prompt.tobytes()), BLOCK * prompt.itemsize
        hashes, before = array("q"), b""
        for start in range(0, len(tokens) - width + 1, width):
            before = self._hash(before + tokens[start : start + width])
            hashes.append(int.from_bytes(before))
        return hashes

    def _name(self, kind: str, name: str | None) -> str | None:
        return self._hash(f"{kind} {name}".encode()).hex() if name is not None else None

    def _hash(self, content: bytes) -> bytes:
        return blake2b(content, digest_size=_DIGEST, key=self._key).digest()
