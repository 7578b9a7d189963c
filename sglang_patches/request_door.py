"""The door: every request to a generating endpoint is checked and tagged before SGLang sees it.

A pure ASGI middleware.  It answers a bad request itself, with status 400 and before any byte of a stream, and
writes the tag of ``x-hive-*`` headers into the body, where the scheduler finds it.  All else passes untouched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from starlette.middleware import Middleware
from starlette.responses import Response

from hive.ids_in_flight import IdsInFlight
from hive.request_checks import Limits, check_chat, check_completion, check_generate, check_render
from hive.request_tag import RequestError, RequestTag, tag_from_headers

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestDoor:
    """The middleware.  ``limits`` are those of the server behind ``app``."""

    def __init__(self, app: App, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._ids = IdsInFlight()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > self._limits.max_header_bytes:
            error = RequestError("headers", f"must be at most {self._limits.max_header_bytes} bytes together")
            await _refuse(send, error, 431)
            return
        prepare = _ENDPOINTS.get(_route(scope))
        if prepare is None or scope["method"] not in ("POST", "PUT"):
            await self._app(scope, receive, send)
            return
        try:
            body = await _read(receive, self._limits.max_body_bytes)
        except _TooLarge:
            error = RequestError("body", f"must be at most {self._limits.max_body_bytes} bytes")
            await _refuse(send, error, 413)
            return
        if body is None:
            return
        try:
            parsed = _parse(body)
            changed = prepare(parsed, tag_from_headers(headers), self._limits)
            ids = self._ids.claim(parsed.get("rid"))
        except RequestError as error:
            await _refuse(send, error, 400)
            return
        if changed is not None:
            body = orjson.dumps(changed)
            length = str(len(body)).encode()
            scope = {
                **scope,
                "headers": [
                    (name, length if name == b"content-length" else value) for name, value in headers
                ],
            }
        try:
            await self._app(scope, _replay(body, receive), send)
        finally:
            self._ids.release(ids)


def install(app: Any, limits: Limits) -> None:
    """Put the door into a Starlette app that does not serve yet.

    It becomes the innermost middleware: keys are checked, bodies unpacked and answers given CORS headers by those
    around it, in whatever order they are added.  A :class:`RequestError` that an endpoint raises (the checks run once
    more on SGLang's own request objects) is answered in the same form.

    Raises:
        RuntimeError: when the app serves already.
    """
    if app.middleware_stack is not None:
        raise RuntimeError("the request door must be installed before the app serves")
    app.user_middleware.append(Middleware(RequestDoor, limits=limits))
    app.add_exception_handler(RequestError, _answer)


def _answer(_request: Any, error: RequestError) -> Response:
    return Response(_content(error, 400), status_code=400, media_type="application/json")


def _generate(body: Any, tag: RequestTag, limits: Limits) -> Any | None:
    """Check, then merge the tag of the headers; the new body, or None when nothing changed."""
    check_generate(body, limits)
    if not tag:
        return None
    params = body.get("sampling_params")
    if params is None:
        params = body["sampling_params"] = {}
    for item in params if isinstance(params, list) else [params]:
        _write(item, tag)
    return body


def _completion(body: Any, tag: RequestTag, limits: Limits) -> Any | None:
    check_completion(body, limits)
    if not tag:
        return None
    _write(body, tag)
    return body


def _chat(body: Any, tag: RequestTag, limits: Limits) -> Any | None:
    check_chat(body, limits)
    if tag:
        _write(body, tag)
    tagged = bool((body.get("custom_params") or {}).get("hive"))
    # SGLang refuses to return meta information in a stream.
    asks = tagged and not body.get("stream") and not body.get("return_meta_info")
    if asks:
        body["return_meta_info"] = True
    return body if tag or asks else None


def _render(body: Any, tag: RequestTag, limits: Limits) -> None:
    check_render(body, limits)


def _write(owner: dict[str, Any], tag: RequestTag) -> None:
    custom = owner.get("custom_params") or {}
    owner["custom_params"] = {**custom, "hive": {**(custom.get("hive") or {}), **tag.to_dict()}}


_ENDPOINTS: dict[str, Callable[[Any, RequestTag, Limits], Any | None]] = {
    "/generate": _generate,
    "/v1/completions": _completion,
    "/v1/chat/completions": _chat,
    "/hive/render": _render,
}


def _route(scope: Scope) -> str:
    """The path as the app's routes see it: behind a proxy, ``root_path`` is part of ``path``."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


class _TooLarge(Exception):
    """The body exceeds the limit."""


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None when the client went away before it was complete."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _TooLarge
        chunks.append(chunk)
        if not message.get("more_body", False):
            # The usual request is one chunk: it must not be copied.
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError("body", f"must be JSON: {error}") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A channel that gives the body once and then whatever the client does next, such as going away."""
    given = False

    async def replaying() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replaying


async def _refuse(send: Send, error: RequestError, status: int) -> None:
    content = _content(error, status)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _content(error: RequestError, status: int) -> bytes:
    return orjson.dumps(
        {
            "error": {
                "message": str(error),
                "type": "BadRequestError",
                "param": error.field,
                "code": status,
            }
        }
    )
