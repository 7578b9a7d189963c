"""Request middleware: checks every HTTP request before SGLang sees it.

A pure ASGI middleware.  Before the first byte of a response, it rejects unknown routes
(:mod:`sglang_patches.http.routes`), web pages of other origins (:mod:`hive.server.access`), headers and bodies that
are too large, and invalid generation requests.  It stores the tag from the ``x-hive-*`` headers in
:data:`hive.server.request_tag.header_tag`, and what other systems' fields say in
:data:`hive.server.request_tag.foreign_tag`; :mod:`sglang_patches.http.arrival` writes both into every request to the
engine.
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
from hive.server.dialects import foreign_body, foreign_headers, foreign_text
from hive.server.flags.secret_args import without_secrets
from hive.server.kv_segments.separator import SEPARATOR
from hive.server.request_checks import Limits, ids_of
from hive.server.request_checks.ids_in_flight import IdsInFlight
from hive.server.request_tag import RequestError, RequestTag, foreign_tag, header_tag, shown, tag_from_headers
from sglang_patches.http import routes
from sglang_patches.http.declared_segments import separated_chat

PARSED = "hive.parsed"
"""Key in the ASGI scope for the parsed and checked body."""

ROUTE = "hive.route"
"""Key in the ASGI scope for the route whose checks the body passed."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Refusal(Exception):
    """A rejected request: the error and the HTTP status."""

    def __init__(self, error: RequestError, status: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status


class RequestMiddleware:
    """The middleware. ``limits`` are those of the server behind ``app``; ``access`` says who may use it."""

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
        tag = foreign = None
        try:
            route = self._admit(scope)
            tag = header_tag.set(self._tag(scope, route))
            if scope["type"] == "http":
                body = await _read(receive, self._limit(route))
                if body is None:
                    return
                parsed = None
                if (check := routes.CHECKED.get(route)) and scope["method"] in ("POST", "PUT"):
                    parsed, ids = self._checked(check, body)
                    scope[PARSED], scope[ROUTE] = parsed, route
                    if self._limits.kv_segments and (route in routes.CHATS or route == routes.SAMPLES):
                        separated_chat.set(_separated(body, parsed))
                    if route in routes.CHATS and _asks_for_meta_info(parsed):
                        body = orjson.dumps({**parsed, "return_meta_info": True})
                        scope = _resized(scope, len(body))
                if parsed is not None or route in routes.GENERATING:
                    foreign = foreign_tag.set(_foreign(scope, body, parsed))
                receive = _with_body(body, receive)
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
            if foreign is not None:
                foreign_tag.reset(foreign)
            if tag is not None:
                header_tag.reset(tag)

    def _admit(self, scope: Scope) -> str:
        """Return the route of a request.

        Raises:
            Refusal: if the request may not use the route.
        """
        headers, path = scope["headers"], _path(scope)
        if sum(len(name) + len(value) for name, value in headers) > self._limits.max_header_bytes:
            rule = f"must be at most {self._limits.max_header_bytes} bytes together"
            raise Refusal(RequestError("headers", rule), 431)
        if _CONTROL.search(path):
            # Route patterns also match a path that ends in a line break.
            raise Refusal(RequestError("path", f"must have no control characters, got {shown(path)}"), 400)
        route = routes.route_of(path)
        if route is None:
            raise Refusal(RequestError("path", f"must be a route of this server, got {shown(path)}"), 404)
        if route in routes.PICKLED and not self._access.pickle_routes:
            rule = (
                f"must not be {route}: it unpickles request data, so clients could run code on the server; "
                "start the server with --hive-allow-pickle-routes to serve it"
            )
            raise Refusal(RequestError("path", rule), 403)
        try:
            self._access.check_page(headers, navigable=route in routes.PAGES)
        except RequestError as error:
            raise Refusal(error, 403) from None
        if scope["type"] == "websocket" and not self._access.is_user(headers):
            # SGLang checks the keys of HTTP requests only.
            raise Refusal(RequestError("authorization", "must have the server's key"), 401)
        return route

    def _tag(self, scope: Scope, route: str) -> RequestTag:
        """Return the tag from the headers.

        Raises:
            Refusal: if the tag is malformed, or if the route does not accept it.
        """
        headers = scope["headers"]
        try:
            tag = tag_from_headers(headers)
        except RequestError as error:
            raise Refusal(error, 400) from None
        if (route in routes.OF_ALL_TENANTS and tag.tenant is not None) or (
            route in routes.FOR_OPERATORS and not self._access.is_operator(headers)
        ):
            rule = f"must not be {route}: it shows all tenants, so only the operator may use it"
            raise Refusal(RequestError("path", rule), 403)
        return tag

    def _limit(self, route: str) -> int:
        small = route.startswith("/hive/") and route not in routes.CHECKED
        return self._limits.max_control_bytes if small else self._limits.max_body_bytes

    def _checked(self, check: Callable[[Any, Limits], None], body: bytes) -> tuple[dict[str, Any], list[str]]:
        """Return the parsed and checked body, and the request ids that it claimed."""
        try:
            parsed = parsed_json(body)
            check(parsed, self._limits)
            if check is routes.CHECKED[routes.SAMPLES]:
                return parsed, self._ids.claim(ids_of(parsed), "samples.rid")
            owner = parsed.get("parameters") or {} if check is routes.CHECKED[routes.VERTEX] else parsed
            return parsed, self._ids.claim(owner.get("rid"))
        except RequestError as error:
            raise Refusal(error, 400) from None


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def install(app: Any, limits: Limits, access: Access) -> None:
    """Install the request middleware in a Starlette app that does not serve yet.

    It becomes the innermost middleware: the middlewares around it check keys, decompress bodies and add CORS headers,
    in whatever order they are installed.  If an endpoint raises :class:`RequestError` (the checks run again on
    SGLang's own request objects), the client gets the same error format.

    Raises:
        RuntimeError: if the app already serves.
    """
    if app.middleware_stack is not None:
        raise RuntimeError("the request middleware must be installed before the app serves")
    app.user_middleware.append(Middleware(RequestMiddleware, limits=limits, access=access))
    app.add_exception_handler(RequestError, _error_response)


def _error_response(_request: Any, error: RequestError) -> Response:
    return Response(error_body(error, 400), status_code=400, media_type="application/json")


def _asks_for_meta_info(body: dict[str, Any]) -> bool:
    """Whether ``return_meta_info`` must be set on a tagged chat, so that the response includes ``meta_info.hive``."""
    tagged = header_tag.get() or (body.get("custom_params") or {}).get(TAG_KEY)
    # SGLang refuses to return meta information in a stream.
    return bool(tagged) and not body.get("stream") and not body.get("return_meta_info")


def _foreign(scope: Scope, body: bytes, parsed: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a request says in other systems' fields; its headers override its body."""
    in_body = foreign_body(parsed) if parsed is not None else foreign_text(body)
    return in_body | foreign_headers(scope["headers"])


def _separated(body: bytes, parsed: dict[str, Any]) -> bool:
    """Whether a body contains a separator, possibly with escaped characters."""
    plain = SEPARATOR.encode()
    # After a round trip, only characters that JSON must escape are escaped.
    return plain in body or (b"\\u" in body and plain in orjson.dumps(parsed))


def _resized(message: Message, length: int) -> Message:
    """Return a scope or a response start with another content length."""
    headers = [
        (name, str(length).encode() if name.lower() == b"content-length" else value)
        for name, value in message["headers"]
    ]
    return {**message, "headers": headers}


def _path(scope: Scope) -> str:
    """Return the path as the app's routes see it: behind a proxy, ``path`` includes ``root_path``."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


async def _read(receive: Receive, limit: int) -> bytes | None:
    """Read the whole body; return None if the client disconnects before it is complete.

    Raises:
        Refusal: as soon as the body exceeds ``limit`` bytes.
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
            # Most bodies are one chunk; do not copy it.
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def parsed_json(body: bytes) -> Any:
    """Return the JSON in a body.

    Raises:
        RequestError: if it is not JSON.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError("body", f"must be JSON: {error}") from None


def _with_body(body: bytes, receive: Receive) -> Receive:
    """Return a receive channel that delivers the body once, then the client's next messages, such as a disconnect."""
    delivered = False

    async def receive_body() -> Message:
        nonlocal delivered
        if delivered:
            return await receive()
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_body


def _without_secrets(send: Send) -> Send:
    """Return a send channel that buffers a JSON response and removes secrets from it."""
    start: Message = {}
    parts: list[bytes] = []

    async def send_filtered(message: Message) -> None:
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

    return send_filtered


async def _refuse(send: Send, refusal: Refusal) -> None:
    content = error_body(refusal.error, refusal.status)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def error_body(error: RequestError, code: int | str) -> bytes:
    """Return an error in the one format that the request middleware uses."""
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
