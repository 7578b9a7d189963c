"""JSON over HTTP: connections per event loop, retries, streams, and explicit errors."""

from __future__ import annotations

import asyncio
import logging
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

import aiohttp
import tenacity
from yarl import URL

from hive_frontend import telemetry
from hive_frontend.client.guard import check_allowed
from hive_frontend.client.http.connection import Connection, proxy_of
from hive_frontend.client.json_text import Json, as_json, parsed
from hive_frontend.errors import ModelError

_FINAL = frozenset({501, 505, 507})
"""5xx statuses that are permanent: the server does not support the request."""
_MISSING_STATUS = frozenset({404, 405})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WARN_AT_ATTEMPT = 4
"""The attempt at which waiting for a server is logged."""

_log = logging.getLogger(__name__)


class _Answer(NamedTuple):
    """A complete HTTP response."""

    status: int
    body: bytes
    retry_after_s: float = 0.0

    @property
    def is_error(self) -> bool:
        # Redirections are not followed, because they would drop request bodies.
        return self.status >= 300

    @property
    def message(self) -> str:
        answer = parsed(self.body)
        if answer is None:
            return self.body.decode(errors="replace").strip()[:500] or "(no message)"
        return message_of(answer)


class _TransientStatus(Exception):
    """The server, or a proxy in front of it, is temporarily unable to answer."""

    def __init__(self, answer: _Answer) -> None:
        super().__init__(f"HTTP {answer.status}")
        self.answer = answer


def is_transient_status(status: int) -> bool:
    """Return whether a retry of the same request may succeed: the server is busy (429, 529), or has failed."""
    return status == 429 or (status >= 500 and status not in _FINAL)


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, aiohttp.InvalidURL):
        return False
    return isinstance(error, (aiohttp.ClientError, OSError, _TransientStatus))


def _could_not_connect(error: BaseException | None) -> bool:
    """Return whether no connection was made, so that the server has not seen the request."""
    return isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))


_all: WeakSet[Transport] = WeakSet()


class Transport:
    """Sends requests to the server at `url`. Retries transport errors, and statuses of busy or failing servers.

    A server that has answered before and refuses connections now is assumed to be restarting: the transport waits for
    it, beyond the number of attempts. Callers set the timeout; only making a connection has a timeout here.
    """

    def __init__(self, url: str, api_key: str | None, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f'the URL of a server must look like "http://localhost:30000", not {url!r}')
        # Other clients take the base URL of the API, which ends with /v1.
        self.url = url.rstrip("/").removesuffix("/v1")
        self._urls: dict[str, URL] = {}
        self._headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            **(headers or {}),
        }
        # A proxy from the environment cannot reach a server on this machine's loopback interface.
        self._use_proxies = parts.hostname not in _LOOPBACK
        # Connections belong to an event loop, and each run() call with the same client has its own loop.
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()
        self._answered = False
        """Whether the server has ever answered."""
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
        wait_for_restart: bool = True,
    ) -> Json | None:
        """Return the server's answer; with `missing_ok`, None if it does not have the route.

        With `wait_for_restart=False` it does not wait for a server that is restarting: for requests that a restarted
        server does not need.
        """
        data = None if body is None else as_json(body)

        async def attempt() -> _Answer:
            response = await self._request(method, path, data, headers)
            return await _whole(response)

        what = f"{method} {self.url}{path}"
        answer = await self._with_retries(
            attempt, what, attempts, _is_transient, wait_for_restart=wait_for_restart
        )
        return _read(what, answer, missing_ok)

    async def stream(
        self,
        path: str,
        body: Callable[[], Json],
        on_event: Callable[[Json], None],
        *,
        attempts: int,
        may_retry: Callable[[ModelError], bool],
        on_end: Callable[[], int | None] = lambda: None,
        form: Literal["events", "lines"] = "events",
        headers: Mapping[str, str] | None = None,
        missing_ok: bool = False,
    ) -> bool:
        """Pass every event, or line of JSON, of a streamed answer to `on_event`; with `missing_ok`, return False if the
        server does not have the route.

        `body` returns the body of each attempt. `may_retry` returns whether to retry after a transport error.
        `on_end` may return a transient status, with which the request is retried.
        """
        what = f"POST {self.url}{path}"

        async def attempt() -> _Answer:
            response = await self._request("POST", path, as_json(body()), headers)
            if response.status >= 300:
                return await _whole(response)
            try:
                rest = b""
                # At its end a stream returns an empty chunk.
                while chunk := await response.content.readany():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        take(line)
                take(rest)
            finally:
                # Closes the connection if the answer was not read to its end.
                response.release()
            if (status := on_end()) is not None:
                raise _TransientStatus(_Answer(status, b""))
            return _Answer(response.status, b"")

        def take(line: bytes) -> None:
            if form == "events":
                if not line.startswith(b"data:"):
                    return
                line = line[5:].strip()
                if line == b"[DONE]":
                    return
            elif not line or line.isspace():
                return
            event = parsed(line)
            if not isinstance(event, dict):
                raise ModelError(f"{what}: the stream has a line that is not a JSON object: {line[:200]!r}")
            on_event(event)

        def again(error: BaseException) -> bool:
            return _is_transient(error) and may_retry(_as_model_error(what, error))

        answer = await self._with_retries(attempt, what, attempts, again)
        return not answer.is_error or _read(what, answer, missing_ok) is not None

    async def events(
        self,
        path: str,
        body: Json,
        on_event: Callable[[Json], None],
        *,
        attempts: int,
        headers: Mapping[str, str] | None = None,
        missing_ok: bool = False,
    ) -> bool:
        """`stream` for one answer: no retry after the first event; an error event raises `ModelError`."""
        started = False

        def checked(event: Json) -> None:
            nonlocal started
            started = True
            self.check_event(path, event)
            on_event(event)

        return await self.stream(
            path,
            lambda: body,
            checked,
            attempts=attempts,
            may_retry=lambda _: not started,
            headers=headers,
            missing_ok=missing_ok,
        )

    def check_event(self, path: str, event: Json) -> None:
        """Raise `ModelError` if an event reports an error."""
        error = event.get("error")
        if error:
            status = error.get("code") if isinstance(error, dict) else None
            raise ModelError(
                f"POST {self.url}{path}: the server ended the stream: {message_of(event)}",
                status=status if isinstance(status, int) else None,
            )

    def send_blocking(self, path: str, body: Json, *, timeout_s: float) -> Json | None:
        """`send` for synchronous callers, without retries; None for a missing route."""
        what = f"POST {self.url}{path}"
        check_allowed(what)
        request = urllib.request.Request(self.url + path, as_json(body), self._headers, method="POST")
        proxies = urllib.request.ProxyHandler(None if self._use_proxies else {})
        try:
            with urllib.request.build_opener(proxies).open(request, timeout=timeout_s) as response:
                answer = _Answer(response.status, response.read())
        except urllib.error.HTTPError as error:
            with error:
                answer = _Answer(error.code, error.read())
        except OSError as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ModelError(f"{what}: {reason or type(error).__name__}") from error
        return _read(what, answer, missing_ok=True)

    def connection(self) -> Connection:
        """Return the connections of the running event loop."""
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            for ended in [other for other in self._connections if other.is_closed()]:
                self._connections.pop(ended).abandon()
            proxy = proxy_of(self.url) if self._use_proxies else None
            connection = self._connections[loop] = Connection(self, self._headers, proxy)
        return connection

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.aclose()

    @staticmethod
    async def close_all() -> None:
        """Close the connections of all transports in the running event loop, which is about to end."""
        for transport in list(_all):
            await transport.aclose()

    def _request(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str] | None) -> Any:
        url = self._urls.get(path)
        if url is None:
            url = URL(self.url + path, encoded=True)
            if method == "POST":
                # The paths of POST requests are few; others contain ids of sessions and messages.
                self._urls[path] = url
        if (trace := telemetry.headers()) is not None:
            headers = {**(headers or {}), **trace}
        return self.connection().http.request(method, url, data=data, headers=headers, allow_redirects=False)

    async def _with_retries(
        self,
        attempt: Callable[[], Awaitable[_Answer]],
        what: str,
        attempts: int,
        may_retry: Callable[[BaseException], bool],
        *,
        wait_for_restart: bool = True,
    ) -> _Answer:
        check_allowed(what)
        try:
            answer = await attempt()
        except (aiohttp.ClientError, OSError, _TransientStatus) as error:
            # The retry machinery costs as much as a request, so it is used only after a failure.
            answer = await self._retry(attempt, error, what, attempts, may_retry, wait_for_restart)
        self._answered = True
        return answer

    async def _retry(
        self,
        attempt: Callable[[], Awaitable[_Answer]],
        first: BaseException | None,
        what: str,
        attempts: int,
        may_retry: Callable[[BaseException], bool],
        wait_for_restart: bool,
    ) -> _Answer:
        """Retry after the first attempt has failed."""
        left = attempts

        async def next_attempt() -> _Answer:
            nonlocal first
            if first is not None:
                error, first = first, None
                raise error
            return await attempt()

        def is_enough(state: tenacity.RetryCallState) -> bool:
            nonlocal left
            if not (wait_for_restart and self._answered and _could_not_connect(_error_of(state))):
                left -= 1
            elif state.attempt_number == _WARN_AT_ATTEMPT:
                _log.warning("%s: the server refuses connections; waiting for it to restart", what)
            return left <= 0

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(may_retry),
            wait=_RetryWait(tenacity.wait_random_exponential(multiplier=0.4, max=10.0)),
            stop=is_enough,
            reraise=True,
        )
        try:
            answer: _Answer = await retrying(next_attempt)
            return answer
        except _TransientStatus as error:
            return error.answer
        except (aiohttp.ClientError, OSError) as error:
            raise _as_model_error(what, error) from error


class _RetryWait(tenacity.wait.wait_base):
    """Waits as long as the server's `Retry-After`, but at least as long as `least`."""

    def __init__(self, least: tenacity.wait.wait_base) -> None:
        self._least = least

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        error = _error_of(retry_state)
        asked = error.answer.retry_after_s if isinstance(error, _TransientStatus) else 0.0
        return max(asked, self._least(retry_state))


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    """Return the seconds of `Retry-After`, which may be a number or a date; 0 without it."""
    header = response.headers.get("Retry-After")
    if header is None:
        return 0.0
    try:
        return max(
            0.0,
            float(header) if header.strip().isdigit() else parsedate_to_datetime(header).timestamp() - time(),
        )
    except ValueError:
        return 0.0


async def _whole(response: aiohttp.ClientResponse) -> _Answer:
    """Read a complete response; `_TransientStatus` if its status is transient."""
    answer = _Answer(response.status, await response.read(), _retry_after_s(response))
    if is_transient_status(answer.status):
        raise _TransientStatus(answer)
    return answer


def _read(what: str, answer: _Answer, missing_ok: bool) -> Json | None:
    if missing_ok and answer.status in _MISSING_STATUS:
        return None
    if answer.is_error:
        raise ModelError(
            f"{what}: the server answered {answer.status}: {answer.message}", status=answer.status
        )
    read = parsed(answer.body) if answer.body else {}
    if not isinstance(read, dict):
        text = answer.body.decode(errors="replace")
        raise ModelError(f"{what}: the answer is not a JSON object: {text[:200]!r}", status=answer.status)
    return read


def _as_model_error(what: str, error: BaseException) -> ModelError:
    if isinstance(error, _TransientStatus):
        answer = error.answer
        return ModelError(
            f"{what}: the server answered {answer.status}: {answer.message}", status=answer.status
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = f"no connection to {error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    elif isinstance(error, aiohttp.ClientPayloadError):
        reason = "the connection was closed before the answer was complete"
    elif isinstance(error, aiohttp.ServerDisconnectedError):
        reason = "the server closed the connection without an answer"
    else:
        reason = str(error) or type(error).__name__
    return ModelError(f"{what}: {reason}")


def message_of(answer: Any) -> str:
    """Return the error message in an answer, whose format differs between servers."""
    if isinstance(answer, dict):
        answer = answer.get("error", answer.get("detail", answer))
    if isinstance(answer, dict):
        answer = answer.get("message", answer)
    return answer if isinstance(answer, str) else as_json(answer).decode()[:500]
