"""The door: every request is looked at before SGLang sees it.

A pure ASGI middleware.  It answers itself, before any byte of a stream, what must not come in: routes that are not
served (:mod:`sglang_patches.http.routes`), web pages of others (:mod:`hive.server.access`), headers and bodies that are
too large, and bad requests to generate.  The tag of ``x-hive-*`` headers is left in
:data:`hive.server.request_tag.header_tag`, and is written into whatever the request asks of the engine
(:mod:`sglang_patches.hooks.tokenizer_manager`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from hive_frontend.wire import TAG_KEY
from starlette.middleware import Middleware
from starlette.responses import Response

from hive.server.access import Access
from hive.server.flags.secret_args import without_secrets
from hive.server.kv_segments.separator import SEPARATOR
from hive.server.request_checks import Limits, ids_of
from hive.server.request_checks.ids_in_flight import IdsInFlight
from hive.server.request_tag import RequestError, RequestTag, header_tag, shown, tag_from_headers
from sglang_patches.http import routes
from sglang_patches.http.declared_segments import separated_chat

PARSED = "hive.parsed"
"""Key of the scope under which a route finds its body, parsed and checked."""

ROUTE = "hive.route"
"""And the route whose checks it passed."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Refusal(Exception):
    """A request that the door answers itself: why, and with which status."""

    def __init__(self, error: RequestError, status: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status


class RequestDoor:
    """The middleware.  ``limits`` are those of the server behind ``app``, ``access`` says who may use it."""

    def __init__(self, app: App, limits: Limits, access: Access) -> None:
        self._app = app
        self._limits = limits
        self._access = access
        self._ids = IdsInFlight()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        ids: list[str] = []
        tag = None
        try:
            route = self._admit(scope)
            tag = header_tag.set(self._tag(scope, route))
            if scope["type"] == "http":
                body = await _read(receive, self._limit(route))
                if body is None:
                    return
                if (check := routes.CHECKED.get(route)) and scope["method"] in ("POST", "PUT"):
                    parsed, ids = self._checked(check, body)
                    scope[PARSED], scope[ROUTE] = parsed, route
                    if self._limits.kv_segments and (route in routes.CHATS or route == routes.SAMPLES):
                        separated_chat.set(_separated(body, parsed))
                    if route in routes.CHATS and _asks_for_meta_info(parsed):
                        body = orjson.dumps({**parsed, "return_meta_info": True})
                        scope = _resized(scope, len(body))
                receive = _replay(body, receive)
                if route in routes.SHOWING_ARGUMENTS:
                    send = _without_secrets(send)
            await self._app(scope, receive, send)
        except Refusal as refusal:
            if scope["type"] == "websocket":
                # Before it is accepted: the server answers the handshake with 403.
                await send({"type": "websocket.close", "code": 1008, "reason": str(refusal)[:100]})
            else:
                await _refuse(send, refusal)
        finally:
            self._ids.release(ids)
            if tag is not None:
                header_tag.reset(tag)

    def _admit(self, scope: Scope) -> str:
        """The route that a request asks for, if it may.

        Raises:
            Refusal: if it may not.
        """
        headers, path = scope["headers"], _path(scope)
        if sum(len(name) + len(value) for name, value in headers) > self._limits.max_header_bytes:
            rule = f"must be at most {self._limits.max_header_bytes} bytes together"
            raise Refusal(RequestError("headers", rule), 431)
        if _CONTROL.search(path):
            # Patterns of routes match a path with a line's end behind it.
            raise Refusal(RequestError("path", f"must have no control characters, got {shown(path)}"), 400)
        route = routes.route_of(path)
        if route is None:
            raise Refusal(RequestError("path", f"must be one that the server has, got {shown(path)}"), 404)
        if route in routes.PICKLED and not self._access.pickle_routes:
            rule = (
                f"must not be {route}: it unpickles what it is sent, and so runs code of its clients; "
                "--hive-allow-pickle-routes serves it"
            )
            raise Refusal(RequestError("path", rule), 403)
        try:
            self._access.check_page(headers, navigable=route in routes.PAGES)
        except RequestError as error:
            raise Refusal(error, 403) from None
        if scope["type"] == "websocket" and not self._access.is_user(headers):
            # SGLang checks keys of HTTP alone.
            raise Refusal(RequestError("authorization", "must have the server's key"), 401)
        return route

    def _tag(self, scope: Scope, route: str) -> RequestTag:
        """The tag of the headers, where the route may be had with it.

        Raises:
            Refusal: where it may not, and where the tag is malformed.
        """
        headers = scope["headers"]
        try:
            tag = tag_from_headers(headers)
        except RequestError as error:
            raise Refusal(error, 400) from None
        if (route in routes.OF_ALL_TENANTS and tag.tenant is not None) or (
            route in routes.FOR_OPERATORS and not self._access.is_operator(headers)
        ):
            rule = f"must not be {route}: it tells of all tenants, and so is the operator's"
            raise Refusal(RequestError("path", rule), 403)
        return tag

    def _limit(self, route: str) -> int:
        small = route.startswith("/hive/") and route not in routes.CHECKED
        return self._limits.max_control_bytes if small else self._limits.max_body_bytes

    def _checked(self, check: Callable[[Any, Limits], None], body: bytes) -> tuple[dict[str, Any], list[str]]:
        """A body that may pass, and the ids that it has claimed."""
        try:
            parsed = _parse(body)
            check(parsed, self._limits)
            if check is routes.CHECKED[routes.SAMPLES]:
                return parsed, self._ids.claim(ids_of(parsed), "samples.rid")
            owner = parsed.get("parameters") or {} if check is routes.CHECKED[routes.VERTEX] else parsed
            return parsed, self._ids.claim(owner.get("rid"))
        except RequestError as error:
            raise Refusal(error, 400) from None


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def install(app: Any, limits: Limits, access: Access) -> None:
    """Put the door into a Starlette app that does not serve yet.

    It becomes the innermost middleware: keys are checked, bodies unpacked and answers given CORS headers by those
    around it, in whatever order they are added.  A :class:`RequestError` that an endpoint raises (the checks run once
    more on SGLang's own request objects) is answered in the same form.

    Raises:
        RuntimeError: when the app serves already.
    """
    if app.middleware_stack is not None:
        raise RuntimeError("the request door must be installed before the app serves")
    app.user_middleware.append(Middleware(RequestDoor, limits=limits, access=access))
    app.add_exception_handler(RequestError, _answer)


def _answer(_request: Any, error: RequestError) -> Response:
    return Response(error_body(error, 400), status_code=400, media_type="application/json")


def _asks_for_meta_info(body: dict[str, Any]) -> bool:
    """Whether a tagged chat has to be made to say what was done."""
    tagged = header_tag.get() or (body.get("custom_params") or {}).get(TAG_KEY)
    # SGLang refuses to return meta information in a stream.
    return bool(tagged) and not body.get("stream") and not body.get("return_meta_info")


def _separated(body: bytes, parsed: dict[str, Any]) -> bool:
    """Whether a separator is anywhere in a body, which may spell its characters as escapes."""
    plain = SEPARATOR.encode()
    # What is written again has no escapes but those that JSON needs.
    return plain in body or (b"\\u" in body and plain in orjson.dumps(parsed))


def _resized(message: Message, length: int) -> Message:
    """A scope, or the start of an answer, with another length of its body."""
    headers = [
        (name, str(length).encode() if name.lower() == b"content-length" else value)
        for name, value in message["headers"]
    ]
    return {**message, "headers": headers}


def _path(scope: Scope) -> str:
    """The path as the app's routes see it: behind a proxy, ``root_path`` is part of ``path``."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None when the client went away before it was complete.

    Raises:
        Refusal: as soon as it is larger than ``limit`` bytes.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise Refusal(RequestError("body", f"must be at most {limit} bytes"), 413)
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


def _without_secrets(send: Send) -> Send:
    """A channel for an answer of JSON, which is sent when it is complete."""
    start: Message = {}
    parts: list[bytes] = []

    async def sending(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            body = b"".join(parts)
            if start["status"] == 200:
                body = orjson.dumps(without_secrets(orjson.loads(body)))
            await send(_resized(start, len(body)))
            await send({"type": "http.response.body", "body": body})

    return sending


async def _refuse(send: Send, refusal: Refusal) -> None:
    content = error_body(refusal.error, refusal.status)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def error_body(error: RequestError, code: int | str) -> bytes:
    """The one form of the door's errors."""
    return orjson.dumps(
        {
            "error": {
                "message": str(error),
                "type": "BadRequestError",
                "param": error.field,
                "code": code,
            }
        }
    )
