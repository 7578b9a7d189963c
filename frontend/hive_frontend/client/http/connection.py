"""The resources of a client in one event loop: connections to a server, and tasks that calls share."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from hive_frontend.client.contract import CallTimeout

_CONNECT_S = 10.0
_KEEPALIVE_S = 4.0
"""Uvicorn, on which most model servers run, closes connections that are idle for 5 s."""


@contextlib.asynccontextmanager
async def answering_within(seconds: float, what: str) -> AsyncIterator[None]:
    """Cancel the block after some seconds, and raise `CallTimeout`."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise CallTimeout(f"{what}: no answer within {seconds:g} s (timeout_s)") from None


class Connection:
    """The connections of `owner` in the running event loop. They are closed when `owner` is garbage-collected."""

    def __init__(self, owner: object, headers: Mapping[str, str], proxy: str | None) -> None:
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers=headers,
            # Cookies are not used, and uncompressed answers are faster to read.
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            proxy=proxy,
        )
        self.lock = asyncio.Lock()
        """Held during look-ups whose result concurrent calls share."""
        self.tasks: dict[Any, asyncio.Task[Any]] = {}
        """Running tasks that several calls wait for, and background tasks."""
        self.forming: dict[Any, Any] = {}
        """Calls of this turn of the event loop that may be merged."""
        self._close_with_owner = weakref.finalize(owner, _close_http, self.http, asyncio.get_running_loop())

    def start(self, key: Any, task: asyncio.Task[Any]) -> None:
        """Keep a task until it is done. Its error is dropped if all calls that waited for it were cancelled."""
        self.tasks[key] = task
        task.add_done_callback(lambda done: self._end(key, done))

    def _end(self, key: Any, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(key, None)
        if not task.cancelled():
            task.exception()

    async def aclose(self) -> None:
        """Close the connections, within the event loop."""
        self._close_with_owner.detach()
        for task in list(self.tasks.values()):
            task.cancel()
        await self.http.close()

    def abandon(self) -> None:
        """Close the connections after the end of the event loop."""
        self._close_with_owner()


def _close_http(http: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> None:
    """Close a session that was left open, so that aiohttp does not warn: in its loop, or directly if that has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: loop.create_task(http.close()))
        return
    with contextlib.suppress(StopIteration):
        http.close().send(None)


def proxy_of(url: str) -> str | None:
    """Return the proxy for `url` from the environment. (aiohttp's `trust_env` would look it up for every request.)"""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")
