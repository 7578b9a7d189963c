"""JSON over HTTP, with patience: connections per event loop, retries, streams, and errors that say why."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

import httpx
import tenacity

from hive_frontend import telemetry
from hive_frontend.client.guard import check_allowed
from hive_frontend.errors import ModelError

_TRANSIENT_STATUS = frozenset({502, 503, 504})
_MISSING_STATUS = frozenset({404, 405})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CONNECT_S = 10.0
_SAID_AT = 4
"""The attempt at which a wait for a server is worth a word."""

_log = logging.getLogger(__name__)

Json = dict[str, Any]


class _TransientStatus(Exception):
    """The server, or a proxy before it, is momentarily unable to answer."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return False
    return isinstance(error, (httpx.TransportError, _TransientStatus))


def _never_arrived(error: BaseException | None) -> bool:
    """Whether the request did not reach a server at all, so that nothing was computed for it."""
    return isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))


class Connection:
    """What a client holds per event loop."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.lock = asyncio.Lock()
        """Held while something is looked up that concurrent calls need only once."""
        self.tasks: dict[Any, asyncio.Task[Any]] = {}
        """Work that several calls may wait for."""


_all: WeakSet[Transport] = WeakSet()


class Transport:
    """Requests to the server at `url`. Errors of the transport are tried again, answers of the server are not.

    A server that has answered before and takes no connections now is being restarted: it is waited for, however many
    attempts that takes.
    Callers bound the time: there is no timeout here but for making a connection.
    """

    def __init__(self, url: str, api_key: str | None, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f'the URL of a server looks like "http://localhost:30000", not {url!r}')
        # Users of other clients have the habit of giving the API's base URL.
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {**({"Authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})}
        # A proxy set in the environment cannot reach a server that listens on this machine's loopback.
        self._use_proxies = parts.hostname not in _LOOPBACK
        # Connections belong to an event loop; one client may serve several run() calls, each with its own.
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()
        self._answered = False
        """Whether the server has answered anything yet."""
        _all.add(self)

    async def send(
        self,
        method: str,
        path: str,
        body: Json | None,
        *,
        attempts: int,
        headers: Mapping[str, str] | None = None,
        missing_ok: bool = False,
        may_wait: bool = True,
    ) -> Json | None:
        """The server's answer; None for a route that it does not have, if that may be.

        `may_wait=False` is for what a server that is restarted has no use for.
        """

        async def attempt() -> httpx.Response:
            response = await self.connection().http.request(
                method, path, json=body, headers=_with_trace(headers)
            )
            if response.status_code in _TRANSIENT_STATUS:
                raise _TransientStatus(response)
            return response

        what = f"{method} {self.url}{path}"
        response = await self._patiently(attempt, what, attempts, _is_transient, may_wait=may_wait)
        return self._read(response, missing_ok)

    async def stream(
        self,
        path: str,
        body: Json,
        on_event: Callable[[Json], None],
        *,
        attempts: int,
        headers: Mapping[str, str] | None = None,
        missing_ok: bool = False,
    ) -> bool:
        """Give every event of a streamed answer to `on_event`; False for a route that the server does not have.

        Once an event came, nothing is tried again.
        """
        begun = False

        async def attempt() -> httpx.Response:
            nonlocal begun
            async with self.connection().http.stream(
                "POST", path, json=body, headers=_with_trace(headers)
            ) as response:
                if response.is_error:
                    await response.aread()
                    if response.status_code in _TRANSIENT_STATUS:
                        raise _TransientStatus(response)
                    return response
                async for line in _lines(response):
                    data = line.removeprefix(b"data:").strip()
                    if line.startswith(b"data:") and data != b"[DONE]":
                        begun = True
                        on_event(self._event(path, data))
                return response

        def may_repeat(error: BaseException) -> bool:
            return not begun and _is_transient(error)

        response = await self._patiently(attempt, f"POST {self.url}{path}", attempts, may_repeat)
        return not response.is_error or self._read(response, missing_ok) is not None

    def send_blocking(self, path: str, body: Json, *, timeout_s: float) -> Json | None:
        """The same as `send` for callers that are no coroutines; tried once. None for a missing route."""
        check_allowed(f"POST {self.url}{path}")
        try:
            with httpx.Client(timeout=timeout_s, headers=self._headers, trust_env=self._use_proxies) as http:
                response = http.post(self.url + path, json=body)
        except httpx.HTTPError as error:
            raise _transport_error(f"POST {self.url}{path}", error) from error
        return self._read(response, missing_ok=True)

    def connection(self) -> Connection:
        """What this client holds in the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            http = httpx.AsyncClient(
                base_url=self.url,
                timeout=httpx.Timeout(None, connect=_CONNECT_S),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
                headers=self._headers,
                trust_env=self._use_proxies,
            )
            self._connections[loop] = Connection(http)
        return self._connections[loop]

    async def aclose(self) -> None:
        """Let go of the connections of the running event loop."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            for task in connection.tasks.values():
                task.cancel()
            await connection.http.aclose()

    @staticmethod
    async def close_all() -> None:
        """Let go of all connections of the running event loop, which is about to end."""
        for transport in list(_all):
            await transport.aclose()

    async def _patiently(
        self,
        attempt: Callable[[], Awaitable[httpx.Response]],
        what: str,
        attempts: int,
        may_repeat: Callable[[BaseException], bool],
        *,
        may_wait: bool = True,
    ) -> httpx.Response:
        check_allowed(what)
        left = attempts

        def is_enough(state: tenacity.RetryCallState) -> bool:
            nonlocal left
            error = state.outcome.exception() if state.outcome is not None else None
            if not (may_wait and self._answered and _never_arrived(error)):
                left -= 1
            elif state.attempt_number == _SAID_AT:
                _log.warning("%s: the server takes no connections; waiting for it", what)
            return left <= 0

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(may_repeat),
            wait=tenacity.wait_random_exponential(multiplier=0.4, max=10.0),
            stop=is_enough,
            reraise=True,
        )
        try:
            response: httpx.Response = await retrying(attempt)
            self._answered = True
            return response
        except _TransientStatus as error:
            return error.response
        except httpx.HTTPError as error:
            raise _transport_error(what, error) from error

    def _read(self, response: httpx.Response, missing_ok: bool) -> Json | None:
        if missing_ok and response.status_code in _MISSING_STATUS:
            return None
        what = f"{response.request.method} {response.request.url}"
        if response.is_error:
            raise ModelError(
                f"{what}: the server answered {response.status_code}: {_error_message(response)}",
                status=response.status_code,
            )
        answer = _parsed(response.text) if response.content else {}
        if not isinstance(answer, dict):
            raise ModelError(
                f"{what}: the answer is no JSON object: {response.text[:200]!r}",
                status=response.status_code,
            )
        return answer

    def _event(self, path: str, data: bytes) -> Json:
        event = _parsed(data)
        if not isinstance(event, dict):
            raise ModelError(f"POST {self.url}{path}: the stream holds no JSON object: {data[:200]!r}")
        error = event.get("error")
        if error:
            status = error.get("code") if isinstance(error, dict) else None
            raise ModelError(
                f"POST {self.url}{path}: the server ended the stream: {_message_of(event)}",
                status=status if isinstance(status, int) else None,
            )
        return event


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a stream. (httpx's own also end where JSON strings may go on, such as at U+2028.)"""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    yield rest


def _with_trace(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {**(headers or {}), **(telemetry.headers() or {})}


def _transport_error(what: str, error: httpx.HTTPError) -> ModelError:
    return ModelError(f"{what}: {str(error) or type(error).__name__}")


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _error_message(response: httpx.Response) -> str:
    answer = _parsed(response.text)
    return response.text.strip()[:500] or "(no message)" if answer is None else _message_of(answer)


def _message_of(answer: Any) -> str:
    """What the server says is wrong, out of the several shapes in which servers say it."""
    if isinstance(answer, dict):
        answer = answer.get("error", answer.get("detail", answer))
    if isinstance(answer, dict):
        answer = answer.get("message", answer)
    return answer if isinstance(answer, str) else json.dumps(answer)[:500]
