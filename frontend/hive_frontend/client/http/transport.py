"""JSON over HTTP, with patience: connections per event loop, retries, streams, and errors that say why."""

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
"""Statuses of the 500s by which a server says that it will never do what it is asked."""
_MISSING_STATUS = frozenset({404, 405})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAID_AT = 4
"""The attempt at which a wait for a server is worth a word."""

_log = logging.getLogger(__name__)


class _Answer(NamedTuple):
    """What a server said, whole."""

    status: int
    body: bytes
    retry_after_s: float = 0.0

    @property
    def is_error(self) -> bool:
        # Redirections are not followed: bodies would get lost on the way.
        return self.status >= 300

    @property
    def message(self) -> str:
        answer = parsed(self.body)
        if answer is None:
            return self.body.decode(errors="replace").strip()[:500] or "(no message)"
        return message_of(answer)


class _TransientStatus(Exception):
    """The server, or a proxy before it, is momentarily unable to answer."""

    def __init__(self, answer: _Answer) -> None:
        super().__init__(f"HTTP {answer.status}")
        self.answer = answer


def is_transient_status(status: int) -> bool:
    """Whether the same request may get an answer later: the server is busy (429, 529), or has failed."""
    return status == 429 or (status >= 500 and status not in _FINAL)


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, aiohttp.InvalidURL):
        return False
    return isinstance(error, (aiohttp.ClientError, OSError, _TransientStatus))


def _never_arrived(error: BaseException | None) -> bool:
    """Whether the request did not reach a server at all, so that nothing was computed for it."""
    return isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))


_all: WeakSet[Transport] = WeakSet()


class Transport:
    """Requests to the server at `url`. Errors of the transport are tried again, answers of the server are not, unless
    they say that it is busy or has failed.

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
        self._urls: dict[str, URL] = {}
        self._headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            **(headers or {}),
        }
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
        data = None if body is None else as_json(body)

        async def attempt() -> _Answer:
            response = await self._request(method, path, data, headers)
            return await _whole(response)

        what = f"{method} {self.url}{path}"
        answer = await self._patiently(attempt, what, attempts, _is_transient, may_wait=may_wait)
        return _read(what, answer, missing_ok)

    async def stream(
        self,
        path: str,
        body: Callable[[], Json],
        on_event: Callable[[Json], None],
        *,
        attempts: int,
        may_repeat: Callable[[ModelError], bool],
        on_end: Callable[[], int | None] = lambda: None,
        form: Literal["events", "lines"] = "events",
        headers: Mapping[str, str] | None = None,
        missing_ok: bool = False,
    ) -> bool:
        """Give every event, or line of JSON, of a streamed answer to `on_event`; False for a route that the server does
        not have.

        `body` makes the request of each attempt; `may_repeat` says whether there shall be another one after an error
        of the transport. `on_end` may find in what came that something failed for the time being: by its status the
        request is tried again.
        """
        what = f"POST {self.url}{path}"

        async def attempt() -> _Answer:
            response = await self._request("POST", path, as_json(body()), headers)
            if response.status >= 300:
                return await _whole(response)
            try:
                rest = b""
                # At its end a stream gives nothing.
                while chunk := await response.content.readany():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        take(line)
                take(rest)
            finally:
                # Closes the connection if there is more to come that nobody wants.
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
                raise ModelError(f"{what}: the stream holds no JSON object: {line[:200]!r}")
            on_event(event)

        def again(error: BaseException) -> bool:
            return _is_transient(error) and may_repeat(_as_model_error(what, error))

        answer = await self._patiently(attempt, what, attempts, again)
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
        """`stream` for one answer: once an event came, nothing is tried again, and an error that is sent is raised."""
        begun = False

        def checked(event: Json) -> None:
            nonlocal begun
            begun = True
            self.check_event(path, event)
            on_event(event)

        return await self.stream(
            path,
            lambda: body,
            checked,
            attempts=attempts,
            may_repeat=lambda _: not begun,
            headers=headers,
            missing_ok=missing_ok,
        )

    def check_event(self, path: str, event: Json) -> None:
        """`ModelError` if an event says that the server gives up."""
        error = event.get("error")
        if error:
            status = error.get("code") if isinstance(error, dict) else None
            raise ModelError(
                f"POST {self.url}{path}: the server ended the stream: {message_of(event)}",
                status=status if isinstance(status, int) else None,
            )

    def send_blocking(self, path: str, body: Json, *, timeout_s: float) -> Json | None:
        """The same as `send` for callers that are no coroutines; tried once. None for a missing route."""
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
        """What this client holds in the running event loop."""
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            for ended in [other for other in self._connections if other.is_closed()]:
                self._connections.pop(ended).abandon()
            proxy = proxy_of(self.url) if self._use_proxies else None
            connection = self._connections[loop] = Connection(self, self._headers, proxy)
        return connection

    async def aclose(self) -> None:
        """Let go of the connections of the running event loop."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.aclose()

    @staticmethod
    async def close_all() -> None:
        """Let go of all connections of the running event loop, which is about to end."""
        for transport in list(_all):
            await transport.aclose()

    def _request(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str] | None) -> Any:
        url = self._urls.get(path)
        if url is None:
            url = URL(self.url + path, encoded=True)
            if method == "POST":
                # These are few; others name sessions and messages.
                self._urls[path] = url
        if (trace := telemetry.headers()) is not None:
            headers = {**(headers or {}), **trace}
        return self.connection().http.request(method, url, data=data, headers=headers, allow_redirects=False)

    async def _patiently(
        self,
        attempt: Callable[[], Awaitable[_Answer]],
        what: str,
        attempts: int,
        may_repeat: Callable[[BaseException], bool],
        *,
        may_wait: bool = True,
    ) -> _Answer:
        check_allowed(what)
        try:
            answer = await attempt()
        except (aiohttp.ClientError, OSError, _TransientStatus) as error:
            # The machinery of retries costs as much as a request, so those that need none go without.
            answer = await self._again(attempt, error, what, attempts, may_repeat, may_wait)
        self._answered = True
        return answer

    async def _again(
        self,
        attempt: Callable[[], Awaitable[_Answer]],
        first: BaseException | None,
        what: str,
        attempts: int,
        may_repeat: Callable[[BaseException], bool],
        may_wait: bool,
    ) -> _Answer:
        """Go on after the first attempt has failed."""
        left = attempts

        async def next_attempt() -> _Answer:
            nonlocal first
            if first is not None:
                error, first = first, None
                raise error
            return await attempt()

        def is_enough(state: tenacity.RetryCallState) -> bool:
            nonlocal left
            if not (may_wait and self._answered and _never_arrived(_error_of(state))):
                left -= 1
            elif state.attempt_number == _SAID_AT:
                _log.warning("%s: the server takes no connections; waiting for it", what)
            return left <= 0

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(may_repeat),
            wait=_Patience(tenacity.wait_random_exponential(multiplier=0.4, max=10.0)),
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


class _Patience(tenacity.wait.wait_base):
    """As long as the server asks for, but not less than `least`."""

    def __init__(self, least: tenacity.wait.wait_base) -> None:
        self._least = least

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        error = _error_of(retry_state)
        asked = error.answer.retry_after_s if isinstance(error, _TransientStatus) else 0.0
        return max(asked, self._least(retry_state))


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    """Seconds that the server asks to wait, which it says as such or as a date; 0 if it does not."""
    said = response.headers.get("Retry-After")
    if said is None:
        return 0.0
    try:
        return max(
            0.0, float(said) if said.strip().isdigit() else parsedate_to_datetime(said).timestamp() - time()
        )
    except ValueError:
        return 0.0


async def _whole(response: aiohttp.ClientResponse) -> _Answer:
    """All of an answer; `_TransientStatus` if it is none yet."""
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
        raise ModelError(f"{what}: the answer is no JSON object: {text[:200]!r}", status=answer.status)
    return read


def _as_model_error(what: str, error: BaseException) -> ModelError:
    if isinstance(error, _TransientStatus):
        answer = error.answer
        return ModelError(
            f"{what}: the server answered {answer.status}: {answer.message}", status=answer.status
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        said = f"no connection to {error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    elif isinstance(error, aiohttp.ClientPayloadError):
        said = "the connection was closed before the answer was complete"
    elif isinstance(error, aiohttp.ServerDisconnectedError):
        said = "the server closed the connection without an answer"
    else:
        said = str(error) or type(error).__name__
    return ModelError(f"{what}: {said}")


def message_of(answer: Any) -> str:
    """What the server says is wrong, out of the several shapes in which servers say it."""
    if isinstance(answer, dict):
        answer = answer.get("error", answer.get("detail", answer))
    if isinstance(answer, dict):
        answer = answer.get("message", answer)
    return answer if isinstance(answer, str) else as_json(answer).decode()[:500]
