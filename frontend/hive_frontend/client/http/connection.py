"""What a client holds in an event loop: connections to a server, and work that calls share."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
import weakref
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

_CONNECT_S = 10.0
_KEEPALIVE_S = 4.0
"""Uvicorn, which serves most models, closes connections that are idle for 5 s."""


class Connection:
    """The connections of `owner` in the running event loop. They are let go with `owner` at the latest."""

    def __init__(self, owner: object, headers: Mapping[str, str], proxy: str | None) -> None:
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers=headers,
            # Nobody here knows cookies; and what is not compressed need not be taken apart.
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            proxy=proxy,
        )
        self.lock = asyncio.Lock()
        """Held while something is looked up that concurrent calls need only once."""
        self.tasks: dict[Any, asyncio.Task[Any]] = {}
        """Work that several calls may wait for, and work that nobody waits for."""
        self.forming: dict[Any, Any] = {}
        """Calls of this turn of the event loop that may travel together."""
        self._end_with_owner = weakref.finalize(owner, _let_go, self.http, asyncio.get_running_loop())

    def start(self, key: Any, task: asyncio.Task[Any]) -> None:
        """Keep a task until it is done. Its error is nobody's when all that waited for it have gone."""
        self.tasks[key] = task
        task.add_done_callback(lambda done: self._end(key, done))

    def _end(self, key: Any, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(key, None)
        if not task.cancelled():
            task.exception()

    async def aclose(self) -> None:
        """Let go, within the event loop."""
        self._end_with_owner.detach()
        for task in list(self.tasks.values()):
            task.cancel()
        await self.http.close()

    def abandon(self) -> None:
        """Let go after the end of the event loop."""
        self._end_with_owner()


def _let_go(http: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> None:
    """Close what nobody has closed, without aiohttp's complaint: in its loop, or by hand where that has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: loop.create_task(http.close()))
        return
    with contextlib.suppress(StopIteration):
        http.close().send(None)


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for `url`. (aiohttp's `trust_env` would look at every request.)"""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")
