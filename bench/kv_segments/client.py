"""One server over HTTP: calls with what they took, answers with hidden states, flushes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

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
        # Environment variables must not put a proxy between this process and the server.
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(900),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Streamed:
        """Send a request whose answer comes as server-sent events, and wait for its end.

        Raises:
            BenchError: when the server refuses it or the stream ends early.
        """
        started = time.perf_counter()
        first = 0.0
        last = ""
        async with self._http.stream("POST", path, json={**body, "stream": True}, headers=headers) as answer:
            if answer.status_code != 200:
                raise _refused(path, answer.status_code, (await answer.aread()).decode())
            async for line in answer.aiter_lines():
                # Every event repeats those before it: only the last is worth the time that parsing takes, which
                # other streams of this process would wait for.
                if line.startswith("data: {"):
                    first = first or time.perf_counter()
                    last = line
        ended = time.perf_counter()
        parsed: dict[str, Any] = json.loads(last.removeprefix("data: ")) if last else {}
        if "error" in parsed:
            raise BenchError(f"{path}: the stream broke off: {str(parsed['error'])[:500]}")
        if parsed.get("meta_info", {}).get("finish_reason") is None:
            raise BenchError(f"{path}: the stream ended before the answer was complete")
        return Streamed(started, first, ended, parsed)

    async def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            BenchError: when the server refuses it.
        """
        answer = await self._http.post(path, json=body, headers=headers)
        if answer.status_code != 200:
            raise _refused(path, answer.status_code, answer.text)
        parsed: dict[str, Any] = answer.json()
        return parsed

    async def flush(self) -> None:
        """Make the server's caches cold."""
        answer = await self._http.post("/flush_cache", params={"timeout": FLUSH_PATIENCE_S})
        if answer.status_code != 200:
            raise _refused("/flush_cache", answer.status_code, answer.text)

    async def end_session(self, session: str) -> None:
        """Forget a session, with its messages."""
        answer = await self._http.delete(f"/hive/sessions/{session}")
        if answer.status_code != 200:
            raise _refused("DELETE /hive/sessions", answer.status_code, answer.text)


def _refused(path: str, status: int, text: str) -> BenchError:
    return BenchError(f"{path}: HTTP {status}: {text[:500]}")
