"""Hive's servers behind a router that forwards requests for tokens, and little else.

`sglang-router` has routes of its own for what SGLang serves, and none for `/hive/*`. It rebuilds the bodies of requests
from the fields that it knows, without `custom_params`; of headers it forwards a few, among them those that begin with
`x-request-id-`. So the tag of a request travels in such headers, and Hive's own routes are asked of the servers.
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
    """The headers of a request: requests with the same `key` go to the same server."""
    return {ROUTING_KEY: key, **{f"{ROUTED_PREFIX}{name}": str(value) for name, value in tag.items()}}


class BehindRouter:
    """The servers at `urls`, for all that the router before them does not forward.

    A server that takes no connections is passed over: the router does the same with requests for tokens.
    """

    def __init__(
        self, urls: Sequence[str], api_key: str | None, headers: Mapping[str, str] | None = None
    ) -> None:
        if isinstance(urls, str) or not urls:
            raise ValueError(f"servers must be the URLs of the servers behind the router, not {urls!r}")
        self._servers = [Transport(url, api_key, headers) for url in urls]

    async def ask(self, method: str, path: str, body: Json | None, *, attempts: int) -> Json | None:
        """The answer of one of the servers, all of which know it; None for a missing route."""
        for _ in self._servers[1:]:
            try:
                return await self._send(self._servers[0], method, path, body)
            except ModelError as error:
                if not _is_absent(error):
                    raise
                # The next call begins with one that is there.
                self._servers.append(self._servers.pop(0))
        return await self._servers[0].send(method, path, body, attempts=attempts, missing_ok=True)

    async def tell(self, method: str, path: str, body: Json | None) -> Json | None:
        """Tell all servers that are there; the answer of one of them, None for a missing route."""
        answers = await asyncio.gather(
            *(self._send(server, method, path, body) for server in self._servers), return_exceptions=True
        )
        absent: ModelError | None = None
        heard: list[Json | None] = []
        for answer in answers:
            if isinstance(answer, ModelError) and _is_absent(answer):
                absent = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                heard.append(answer)
        if not heard and absent is not None:
            raise absent
        return None if None in heard else heard[0]

    def ask_blocking(self, path: str, body: Json, *, timeout_s: float) -> Json | None:
        """The same as `ask` for callers that are no coroutines; every server is tried once."""
        for server in self._servers[:-1]:
            try:
                return server.send_blocking(path, body, timeout_s=timeout_s)
            except ModelError as error:
                if not _is_absent(error):
                    raise
        return self._servers[-1].send_blocking(path, body, timeout_s=timeout_s)

    async def aclose(self) -> None:
        """Let go of the connections of the running event loop."""
        for server in self._servers:
            await server.aclose()

    @staticmethod
    async def _send(server: Transport, method: str, path: str, body: Json | None) -> Json | None:
        return await server.send(method, path, body, attempts=1, missing_ok=True, may_wait=False)


def _is_absent(error: ModelError) -> bool:
    """Whether the server could not be reached, as opposed to its having refused."""
    return error.status is None or error.status in (502, 503, 504)
