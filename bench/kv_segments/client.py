"""One server over HTTP: calls with what they took, answers with hidden states, flushes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from bench.logits_cache.client import BenchError

FLUSH_PATIENCE_S = 30
"""A server flushes only when idle; the last answer may be out before the engine has noticed."""


@dataclass(frozen=True)
class KV:
    """Where the keys and values of a context came from, in tokens."""

    exact: int = 0
    """From the radix tree."""
    placed: int = 0
    """From stored segments, and not computed again."""
    recomputed: int = 0
    """From stored segments, and computed again by a corrector."""
    missing: int = 0
    """Computed, as nothing was stored."""

    @property
    def context(self) -> int:
        """All tokens that there is an account of."""
        return self.exact + self.placed + self.recomputed + self.missing

    def __add__(self, other: KV) -> KV:
        return KV(
            self.exact + other.exact,
            self.placed + other.placed,
            self.recomputed + other.recomputed,
            self.missing + other.missing,
        )


def kv_of(account: Any) -> KV:
    """What a server says under ``kv``.

    Raises:
        BenchError: when it says nothing of the kind.
    """
    try:
        return KV(**{name: int(account[name]) for name in ("exact", "placed", "recomputed", "missing")})
    except (KeyError, TypeError, ValueError):
        raise BenchError(f"the server gives no account of its KV segments: {account!r}") from None


@dataclass(frozen=True)
class Streamed:
    """A streamed answer."""

    started_s: float
    """By `time.perf_counter`, as all of these."""
    first_s: float
    """When the first token was here."""
    ended_s: float
    body: dict[str, Any]
    """The last event, which repeats what those before it said."""


class Client:
    """Requests to one server; use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self.url = url
        # Not httpx: it takes 5 ms of a request, and 35 of eight at a time, which would be half of what is measured.
        # Environment variables do not put a proxy between this process and the server.
        self._http = aiohttp.ClientSession(
            base_url=url,
            timeout=aiohttp.ClientTimeout(900),
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=2**24,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Streamed:
        """Send a request whose answer comes as server-sent events, and wait for its end.

        Raises:
            BenchError: when the server refuses it or the stream ends early.
        """
        return (await self._streamed(path, body, headers, 1))[0]

    async def stream_all(
        self, path: str, bodies: Sequence[Mapping[str, Any]], headers: Mapping[str, str] | None = None
    ) -> list[Streamed]:
        """The same for a list of calls in one request.

        Raises:
            BenchError: when the server refuses it or the stream ends early.
        """
        return await self._streamed(path, {"calls": [*bodies]}, headers, len(bodies))

    async def _streamed(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None, calls: int
    ) -> list[Streamed]:
        started = time.perf_counter()
        first, ended = [0.0] * calls, [0.0] * calls
        last = [b""] * calls
        async with self._http.post(path, json={**body, "stream": True}, headers=headers) as answer:
            if answer.status != 200:
                raise _refused(path, answer.status, await answer.text())
            async for line in answer.content:
                # Every event repeats those before it: only the last is worth the time that parsing takes, which
                # other streams of this process would wait for.
                if line.startswith(b"data: {"):
                    at = _index(line) if calls > 1 else 0
                    ended[at] = time.perf_counter()
                    first[at] = first[at] or ended[at]
                    last[at] = line
        found = []
        for at in range(calls):
            parsed: dict[str, Any] = json.loads(last[at].removeprefix(b"data: ")) if last[at] else {}
            if "error" in parsed:
                raise BenchError(f"{path}: the stream broke off: {str(parsed['error'])[:500]}")
            if parsed.get("meta_info", {}).get("finish_reason") is None:
                raise BenchError(f"{path}: the stream ended before the answer was complete")
            found.append(Streamed(started, first[at], ended[at], parsed))
        return found

    async def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            BenchError: when the server refuses it.
        """
        async with self._http.post(path, json=body, headers=headers) as answer:
            if answer.status != 200:
                raise _refused(path, answer.status, await answer.text())
            parsed: dict[str, Any] = await answer.json(content_type=None)
            return parsed

    async def flush(self) -> None:
        """Make the server's caches cold."""
        async with self._http.post("/flush_cache", params={"timeout": FLUSH_PATIENCE_S}) as answer:
            if answer.status != 200:
                raise _refused("/flush_cache", answer.status, await answer.text())

    async def end_session(self, session: str) -> None:
        """Forget a session, with its messages."""
        async with self._http.delete(f"/hive/sessions/{session}") as answer:
            if answer.status != 200:
                raise _refused("DELETE /hive/sessions", answer.status, await answer.text())


_LAST_FIELD = re.compile(rb'"index": ?(\d+)}\s*$')


def _index(line: bytes) -> int:
    """Of the call that an event of a list belongs to: the last field, without parsing all."""
    found = _LAST_FIELD.search(line, max(0, len(line) - 32))
    return int(found[1]) if found else 0


def _refused(path: str, status: int, text: str) -> BenchError:
    return BenchError(f"{path}: HTTP {status}: {text[:500]}")
