"""Hive servers behind a router that forwards little else than generation requests.

`sglang-router` has the routes of SGLang, but none for `/hive/*`. It rebuilds request bodies from the fields that it
knows, without `custom_params`, and forwards only a few headers, among them those that begin with `x-request-id-`. So
the tag of a request is sent in such headers, and requests to `/hive/*` go to the servers directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal

from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.errors import ModelError
from hive_frontend.wire import ROUTED_PREFIX, Tag

ROUTING_KEY = "x-smg-routing-key"

Affinity = Literal["session", "agent"]


def routing_headers(key: str, tag: Tag) -> dict[str, str]:
    """Return the headers of a request. The router sends requests with the same `key` to the same server."""
    return {ROUTING_KEY: key, **{f"{ROUTED_PREFIX}{name}": str(value) for name, value in tag.items()}}


class BehindRouter:
    """Sends the requests that the router does not forward to the servers at `urls` directly.

    Servers that cannot be reached are skipped, as the router does for generation requests.
    """

    def __init__(
        self, urls: Sequence[str], api_key: str | None, headers: Mapping[str, str] | None = None
    ) -> None:
        if isinstance(urls, str) or not urls:
            raise ValueError(
                f"servers must be a list of the URLs of the servers behind the router, not {urls!r}"
            )
        self._servers = [Transport(url, api_key, headers) for url in urls]

    async def send(self, method: str, path: str, body: Json | None, *, attempts: int) -> Json | None:
        """Send a request to any one server; None for a missing route."""
        for _ in self._servers[1:]:
            try:
                return await self._send(self._servers[0], method, path, body)
            except ModelError as error:
                if not _is_unreachable(error):
                    raise
                # The next call begins with another server.
                self._servers.append(self._servers.pop(0))
        return await self._servers[0].send(method, path, body, attempts=attempts, missing_ok=True)

    async def send_to_all(self, method: str, path: str, body: Json | None) -> Json | None:
        """Send a request to all servers that can be reached; return one answer, None for a missing route."""
        answers = await asyncio.gather(
            *(self._send(server, method, path, body) for server in self._servers), return_exceptions=True
        )
        unreachable: ModelError | None = None
        received: list[Json | None] = []
        for answer in answers:
            if isinstance(answer, ModelError) and _is_unreachable(answer):
                unreachable = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                received.append(answer)
        if not received and unreachable is not None:
            raise unreachable
        return None if None in received else received[0]

    def send_blocking(self, path: str, body: Json, *, timeout_s: float) -> Json | None:
        """`send` for synchronous callers. Every server is tried once."""
        for server in self._servers[:-1]:
            try:
                return server.send_blocking(path, body, timeout_s=timeout_s)
            except ModelError as error:
                if not _is_unreachable(error):
                    raise
        return self._servers[-1].send_blocking(path, body, timeout_s=timeout_s)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        for server in self._servers:
            await server.aclose()

    @staticmethod
    async def _send(server: Transport, method: str, path: str, body: Json | None) -> Json | None:
        return await server.send(method, path, body, attempts=1, missing_ok=True, wait_for_restart=False)


def _is_unreachable(error: ModelError) -> bool:
    """Return whether the server could not be reached, rather than refusing the request."""
    return error.status is None or error.status in (502, 503, 504)
