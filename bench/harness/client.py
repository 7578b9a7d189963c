"""One server over HTTP: requests, what streams took, flushes."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import aiohttp

FLUSH_PATIENCE_S = 30
"""A server flushes only when idle; the last answer may be out before the engine has noticed."""
_LAST_FIELD = re.compile(rb'"index": ?(\d+)}\s*$')

T = TypeVar("T")
Headers = Mapping[str, str]


class BenchError(RuntimeError):
    """A server did not answer as it must for its numbers to mean anything."""


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
    """Requests to one server; use it as an async context manager, or close it.

    Every method raises `BenchError` when the server refuses the request.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @cached_property
    def _http(self) -> aiohttp.ClientSession:
        # Not httpx: it takes 5 ms of a request, and 35 of eight at a time, which would be half of what is measured.
        # aiohttp reads no environment variables by itself: none can put a proxy between this process and the server.
        return aiohttp.ClientSession(
            self.url,
            timeout=aiohttp.ClientTimeout(900),
            # Shorter than the 5 s after which uvicorn closes idle connections.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4),
            read_bufsize=2**24,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if "_http" in vars(self):
            await self._http.close()

    async def call(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        """Status and text of an answer, whatever they are."""
        async with self._http.request(method, path, **options) as answer:
            return answer.status, await answer.text()

    async def text(self, method: str, path: str, **options: Any) -> str:
        status, text = await self.call(method, path, **options)
        if status != 200:
            raise BenchError(f"{path}: HTTP {status}: {text[:500]}")
        return text

    async def get(self, path: str) -> dict[str, Any]:
        """A JSON object of the server."""
        return dict(json.loads(await self.text("GET", path)))

    async def post(self, path: str, body: Any, headers: Headers | None = None) -> dict[str, Any]:
        """The answer to a request, a JSON object."""
        return dict(json.loads(await self.text("POST", path, json=body, headers=headers)))

    async def flush(self) -> None:
        """Make the server's caches cold: KV, grammars, and on Hive's server the Logits Cache."""
        await self.text("POST", "/flush_cache", params={"timeout": FLUSH_PATIENCE_S})

    async def end_session(self, session: str) -> None:
        """Forget a session, with its messages."""
        await self.text("DELETE", f"/hive/sessions/{session}")

    async def stream(self, path: str, body: Mapping[str, Any], headers: Headers | None = None) -> Streamed:
        """Send a request whose answer comes as server-sent events, and wait for its end, which must not come early."""
        return (await self._streamed(path, body, headers, 1))[0]

    async def stream_all(
        self, path: str, bodies: Sequence[Mapping[str, Any]], headers: Headers | None = None
    ) -> list[Streamed]:
        """The same for a list of calls in one request."""
        return await self._streamed(path, {"calls": [*bodies]}, headers, len(bodies))

    async def _streamed(
        self, path: str, body: Mapping[str, Any], headers: Headers | None, calls: int
    ) -> list[Streamed]:
        started = time.perf_counter()
        first, ended = [0.0] * calls, [0.0] * calls
        last = [b""] * calls
        async with self._http.post(path, json={**body, "stream": True}, headers=headers) as answer:
            if answer.status != 200:
                raise BenchError(f"{path}: HTTP {answer.status}: {(await answer.text())[:500]}")
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


async def together(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of some jobs at once, in their order; when one fails, all others give up."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
    return [task.result() for task in tasks]


def _index(line: bytes) -> int:
    """Of the call that an event of a list belongs to: the last field, without parsing all."""
    found = _LAST_FIELD.search(line, max(0, len(line) - 32))
    return int(found[1]) if found else 0
