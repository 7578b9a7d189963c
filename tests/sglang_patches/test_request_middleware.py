"""The request middleware as an ASGI app: what it rejects, what it writes into bodies, and what it leaves unchanged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from hive.server.access import Access
from hive.server.kv_segments.separator import SEPARATOR
from hive.server.request_checks import Limits
from hive.server.request_tag import RequestError, header_tag
from sglang_patches.http.declared_segments import separated_chat
from sglang_patches.http.request_middleware import RequestMiddleware, install
from sglang_patches.http.routes import PICKLED

LIMITS = Limits(
    vocab_size=100, context_length=64, max_header_bytes=2048, max_body_bytes=10_000, max_control_bytes=100
)
OTHERS = ("/v1/messages", "/hive/agents", "/update_weights_from_tensor")
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


async def echo(request: Request) -> JSONResponse:
    """What the endpoint behind the middleware received."""
    raw = await request.body()
    length = request.headers.get("content-length")
    tag = header_tag.get().to_dict()
    return JSONResponse({"raw": raw.decode("latin-1"), "length": length, "size": len(raw), "tag": tag})


async def stream(_: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two ", b"three"):
            await asyncio.sleep(0)
            yield part

    return StreamingResponse(parts())


async def late_tag(_: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        yield orjson.dumps(header_tag.get().to_dict())

    return StreamingResponse(parts())


async def refuse(_: Request) -> None:
    raise RequestError("field", "must be better")


def application(access: Access = Access()) -> Starlette:  # noqa: B008
    routes = [Route(path, echo, methods=["GET", "POST", "PUT"]) for path in (*PATHS, *OTHERS)]
    routes += [
        Route("/v1/score", stream, methods=["POST"]),
        Route("/v1/rerank", refuse, methods=["POST"]),
        Route("/v1/responses", late_tag, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    install(app, LIMITS, access)
    return app


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application()) as client:
        yield client


async def received(client: httpx.AsyncClient, path: str, body: Any, **headers: str) -> Any:
    """The body that the endpoint got."""
    answer = await client.post(
        path, json=body, headers={f"x-hive-{key}": value for key, value in headers.items()}
    )
    assert answer.status_code == 200, answer.text
    got = answer.json()
    assert int(got["length"]) == got["size"]
    return orjson.loads(got["raw"])


@pytest.mark.parametrize("path", PATHS)
async def test_an_untagged_request_passes_byte_for_byte(client: httpx.AsyncClient, path: str) -> None:
    raw = b'{ "note" : 1.0e0 , ' + orjson.dumps(BODIES[path])[1:]
    answer = await client.post(path, content=raw)
    assert answer.json()["raw"].encode("latin-1") == raw


@pytest.mark.parametrize("path", [*PATHS, "/v1/messages"])
async def test_the_tag_of_the_headers_is_kept_for_the_engine_request(
    client: httpx.AsyncClient, path: str
) -> None:
    headers = {"x-hive-agent": "h", "x-hive-sample": "2"}
    answer = await client.post(path, json=BODIES.get(path, {}), headers=headers)
    assert answer.json()["tag"] == {"agent": "h", "sample": 2}
    assert (await client.post(path, json=BODIES.get(path, {}))).json()["tag"] == {}


async def test_the_tag_is_there_for_streams(client: httpx.AsyncClient) -> None:
    agents = [f"a{number}" for number in range(20)]
    answers = await asyncio.gather(
        *(client.post("/v1/responses", headers={"x-hive-agent": agent}) for agent in agents)
    )
    assert [answer.json() for answer in answers] == [{"agent": agent} for agent in agents]


@pytest.mark.parametrize(
    ("extra", "headers", "asked"),
    [
        ({}, {}, None),
        ({"custom_params": {"other": 1}}, {}, None),
        ({"custom_params": {"hive": {"agent": "a"}}}, {}, True),
        ({"custom_params": {"hive": {"agent": "a"}}, "stream": True}, {}, None),
        ({}, {"agent": "a"}, True),
        ({"stream": True}, {"agent": "a"}, None),
        ({"return_meta_info": False}, {"agent": "a"}, True),
    ],
)
async def test_tagged_chat_requests_without_a_stream_ask_for_meta_info(
    client: httpx.AsyncClient, extra: dict[str, Any], headers: dict[str, str], asked: bool | None
) -> None:
    got = await received(client, "/v1/chat/completions", BODIES["/v1/chat/completions"] | extra, **headers)
    assert got.get("return_meta_info") is asked


ESCAPED = "".join(f"\\u{ord(character):04X}" for character in SEPARATOR)


@pytest.mark.parametrize(
    ("content", "segments", "separated"),
    [
        (f"a{SEPARATOR}b", True, True),
        (r"a\u003c|hive:segment|\u003e", True, True),
        (f"a{ESCAPED}b", True, True),
        (r"a\u000a", True, False),
        # Of a backslash and what looks like an escape behind it.
        (r"a\\u003c|hive:segment|>", True, False),
        (f"a{SEPARATOR}b", False, False),
        (r"a\u003c|hive:segment|\u003e", False, False),
    ],
)
@pytest.mark.parametrize("parts", [False, True])
async def test_a_separator_in_a_chat_is_seen_however_it_is_spelled(
    content: str, segments: bool, separated: bool, parts: bool
) -> None:
    seen: list[bool] = []

    async def endpoint(*_: Any) -> None:
        seen.append(separated_chat.get())

    text = f'[{{"type": "text", "text": "{content}"}}]' if parts else f'"{content}"'
    body = f'{{"messages": [{{"role": "user", "content": {text}}}]}}'.encode()
    wire = Wire({"type": "http.request", "body": body, "more_body": False})
    limits = replace(LIMITS, kv_segments=segments)
    await RequestMiddleware(endpoint, limits, Access())(
        scope("/v1/chat/completions"), wire.receive, wire.send
    )
    assert seen == [separated]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_bad_request_is_answered_with_400(
    client: httpx.AsyncClient, method: str, stream: bool
) -> None:
    body = {"text": "hi", "sampling_params": {"n": 0}, "stream": stream}
    answer = await client.request(method, "/generate", json=body)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "error": {
            "message": "sampling_params.n must be an integer between 1 and 128, got 0",
            "type": "BadRequestError",
            "param": "sampling_params.n",
            "code": 400,
        }
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[" * 5000, b'{"text": NaN}', b"[]", b'"x"', b"null"]
)
async def test_a_body_that_is_no_object_is_answered_with_400(
    client: httpx.AsyncClient, path: str, content: bytes
) -> None:
    answer = await client.post(path, content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body"


@pytest.mark.parametrize(
    ("headers", "param"),
    [({"x-hive-agents": "a"}, "x-hive-agents"), ({"X-Hive-Sample": "many"}, "x-hive-sample")],
)
async def test_a_bad_header_is_answered_with_400(
    client: httpx.AsyncClient, headers: dict[str, str], param: str
) -> None:
    answer = await client.post("/generate", json={"text": "hi"}, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/messages"), ("POST", "/generate"), ("GET", "/nowhere")]
)
async def test_large_headers_are_refused_everywhere(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    answer = await client.request(method, path, headers={"x-padding": "x" * 2048})
    assert answer.status_code == 431
    assert answer.json()["error"]["message"] == "headers must be at most 2048 bytes together"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize(
    ("path", "limit"), [("/generate", 10_000), ("/v1/messages", 10_000), ("/hive/agents", 100)]
)
async def test_a_large_body_is_refused_everywhere(
    client: httpx.AsyncClient, path: str, limit: int, method: str
) -> None:
    answer = await client.request(method, path, content=b"x" * (limit + 1))
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == f"body must be at most {limit} bytes"


async def test_a_body_of_unknown_length_is_refused_when_it_is_too_large(client: httpx.AsyncClient) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1000

    assert (await client.post("/v1/messages", content=parts())).status_code == 413


async def test_an_endpoint_may_refuse_in_the_same_form(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/rerank")
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "field must be better",
        "type": "BadRequestError",
        "param": "field",
        "code": 400,
    }


async def test_other_endpoints_pass_untouched(client: httpx.AsyncClient) -> None:
    content = b"x" * 9000
    answer = await client.post("/v1/messages", content=content)
    assert answer.json()["size"] == 9000
    assert (await client.get("/generate")).status_code == 200
    assert (await client.post("/v1/score")).text == "one two three"


@pytest.mark.parametrize("path", ["/nowhere", "/generate/more", "/v1", "/hive", "/GENERATE"])
async def test_an_unknown_route_is_not_served(path: str) -> None:
    async with client_of(RequestMiddleware(_unreachable, LIMITS, Access())) as client:
        answer = await client.post(path, json={})
        assert answer.status_code == 404
        assert "a route of this server" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/generate%0a", "/generate%00", "/hive/agents%7f"])
async def test_a_path_has_no_control_characters(client: httpx.AsyncClient, path: str) -> None:
    # Starlette serves /generate under the first of these, too.
    answer = await client.post(path, json={"text": "hi"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "path"


async def test_a_path_with_a_slash_behind_it_is_checked_alike(client: httpx.AsyncClient) -> None:
    answer = await client.post("/generate/", json={"text": 5})
    assert answer.status_code == 400


@pytest.mark.parametrize("path", sorted(PICKLED))
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
async def test_no_pickle_comes_in(path: str, method: str) -> None:
    async with client_of(RequestMiddleware(_unreachable, LIMITS, Access())) as client:
        for spelled in (path, f"{path}/"):
            answer = await client.request(method, spelled, content=b"\x80\x04.")
            assert answer.status_code == 403
            assert "--hive-allow-pickle-routes" in answer.json()["error"]["message"]


async def test_pickle_routes_are_served_if_the_operator_allows_them() -> None:
    async with client_of(application(Access(pickle_routes=True))) as client:
        answer = await client.post("/update_weights_from_tensor", content=b"x")
        assert answer.json()["size"] == 1


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info", "/server_info/"])
async def test_no_keys_are_shown(path: str) -> None:
    shown = {
        "api_key": "k1",
        "port": 1,
        "states": [{"admin_api_key": "k2", "api_key": None}],
        "n": {"a": 1.5},
    }

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse(shown)(scope, receive, send)

    async with client_of(RequestMiddleware(endpoint, LIMITS, Access())) as client:
        answer = await client.get(path)
    assert answer.json() == {
        "api_key": "***",
        "port": 1,
        "states": [{"admin_api_key": "***", "api_key": None}],
        "n": {"a": 1.5},
    }
    assert int(answer.headers["content-length"]) == len(answer.content)


async def test_errors_of_such_routes_pass() -> None:
    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("not now", 503)(scope, receive, send)

    async with client_of(RequestMiddleware(endpoint, LIMITS, Access())) as client:
        assert (await client.get("/server_info")).text == "not now"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/hive/events", {"authorization": "Bearer a"}, 200),
        ("/hive/events", {}, 403),
        ("/hive/events", {"authorization": "Bearer k"}, 403),
        ("/hive/events", {"authorization": "Bearer a", "x-hive-tenant": "t"}, 403),
        ("/metrics", {}, 200),
        ("/metrics/", {"x-hive-tenant": "t"}, 403),
        ("/hive/stats", {"x-hive-tenant": "t"}, 200),
    ],
)
async def test_routes_of_all_tenants_need_the_operator(
    path: str, headers: dict[str, str], status: int
) -> None:
    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("all")(scope, receive, send)

    async with client_of(
        RequestMiddleware(endpoint, LIMITS, Access(api_key="k", admin_api_key="a"))
    ) as client:
        assert (await client.get(path, headers=headers)).status_code == status


async def test_web_pages_of_others_are_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/generate", json={"text": "hi"}, headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    assert answer.json()["error"]["param"] == "origin"


async def _unreachable(*_: Any) -> None:
    raise AssertionError("a refused request came through")


async def test_the_path_is_read_behind_a_proxy() -> None:
    app = Starlette(routes=[Mount("/api", routes=[Route("/generate", echo, methods=["POST"])])])

    async def behind_proxy(scope: Any, receive: Any, send: Any) -> None:
        await RequestMiddleware(app, LIMITS, Access())({**scope, "root_path": "/api"}, receive, send)

    async with client_of(behind_proxy) as client:
        assert (await client.post("/api/generate", json={})).status_code == 400


async def test_a_key_is_checked_before_the_body_is_read() -> None:
    app = application()

    async def guard(request: Request, call_next: Callable[..., Any]) -> Any:
        if request.headers.get("authorization") != "Bearer right":
            return PlainTextResponse("who are you?", 401)
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=guard)
    async with client_of(app) as client:
        for content in (b"{", b'{"text": "hi", "sampling_params": {"n": 0}}'):
            assert (await client.post("/generate", content=content)).status_code == 401
            answer = await client.post(
                "/generate", content=content, headers={"authorization": "Bearer right"}
            )
            assert answer.status_code == 400
        answer = await client.post(
            "/generate", json={"text": "hi"}, headers={"authorization": "Bearer right", "x-hive-agent": "a"}
        )
        assert answer.json()["tag"] == {"agent": "a"}


def test_the_middleware_cannot_be_installed_in_a_serving_app() -> None:
    app = application()
    app.middleware_stack = app.build_middleware_stack()
    with pytest.raises(RuntimeError, match="before the app serves"):
        install(app, LIMITS, Access())


class Wire:
    """One ASGI exchange under the test's control."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        return self.messages.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))


def scope(path: str = "/generate", **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": path, "headers": [], **more}


async def test_the_endpoint_sees_the_client_go_away_after_the_body() -> None:
    seen: list[Any] = []

    async def endpoint(_scope: Any, receive: Any, _send: Any) -> None:
        seen.extend([await receive(), await receive()])

    wire = Wire(
        {"type": "http.request", "body": b'{"te', "more_body": True},
        {"type": "http.request", "body": b'xt": "hi"}', "more_body": False},
        {"type": "http.disconnect"},
    )
    await RequestMiddleware(endpoint, LIMITS, Access())(scope(), wire.receive, wire.send)
    assert seen == [
        {"type": "http.request", "body": b'{"text": "hi"}', "more_body": False},
        {"type": "http.disconnect"},
    ]


async def test_a_client_that_leaves_while_sending_reaches_no_endpoint() -> None:
    async def endpoint(*_: Any) -> None:
        raise AssertionError("half a request came through")

    wire = Wire({"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"})
    await RequestMiddleware(endpoint, LIMITS, Access())(scope(), wire.receive, wire.send)
    assert wire.sent == []


async def test_a_large_body_is_refused_before_all_of_it_is_read() -> None:
    async def endpoint(*_: Any) -> None:
        raise AssertionError("a large body came through")

    wire = Wire(*({"type": "http.request", "body": b"x" * 6000, "more_body": True} for _ in range(9)))
    await RequestMiddleware(endpoint, LIMITS, Access())(scope(), wire.receive, wire.send)
    assert wire.sent[0]["status"] == 413
    assert len(wire.messages) == 7


async def test_the_life_of_the_app_passes() -> None:
    seen: list[str] = []

    async def endpoint(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["type"])

    wire = Wire()
    await RequestMiddleware(endpoint, LIMITS, Access())({"type": "lifespan"}, wire.receive, wire.send)
    assert seen == ["lifespan"]


@pytest.mark.parametrize(
    ("path", "access", "headers", "passes"),
    [
        ("/v1/realtime", Access(), {}, True),
        ("/v1/realtime", Access(), {"origin": "https://evil.example"}, False),
        ("/v1/realtime", Access(api_key="k"), {}, False),
        ("/v1/realtime", Access(api_key="k"), {"authorization": "Bearer x"}, False),
        ("/v1/realtime", Access(api_key="k"), {"authorization": "Bearer k"}, True),
        ("/v1/realtime", Access(api_key="k", admin_api_key="a"), {"authorization": "bearer a"}, True),
        ("/v1/realtime", Access(admin_api_key="a"), {}, True),
        ("/v1/realtime", Access(), {"x-hive-agents": "a"}, False),
        ("/elsewhere", Access(), {}, False),
    ],
)
async def test_websockets_need_the_same_rights_as_requests(
    path: str, access: Access, headers: dict[str, str], passes: bool
) -> None:
    seen: list[str] = []

    async def endpoint(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["type"])

    wire = Wire({"type": "websocket.connect"})
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    handshake = {"type": "websocket", "path": path, "headers": raw}
    await RequestMiddleware(endpoint, LIMITS, access)(handshake, wire.receive, wire.send)
    assert seen == (["websocket"] if passes else [])
    assert [message["type"] for message in wire.sent] == ([] if passes else ["websocket.close"])


async def test_an_untagged_small_request_costs_little() -> None:
    async def endpoint(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()

    middleware = RequestMiddleware(endpoint, LIMITS, Access())
    body = orjson.dumps({"text": "x" * 2000, "sampling_params": {"temperature": 0.7, "max_new_tokens": 64}})
    rounds = 500
    started = time.perf_counter()
    for _ in range(rounds):
        wire = Wire({"type": "http.request", "body": body, "more_body": False})
        await middleware(scope(), wire.receive, wire.send)
    assert (time.perf_counter() - started) / rounds < 100e-6


async def test_an_id_is_one_requests_until_it_is_over_with_all_that_follows() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> JSONResponse:
        begun.set()
        return JSONResponse({}, background=BackgroundTask(go_on.wait))

    app = Starlette(routes=[Route("/generate", slow, methods=["POST"])])
    install(app, LIMITS, Access())
    body = {"text": "hi", "rid": "one"}
    async with client_of(app) as client:
        first = asyncio.create_task(client.post("/generate", json=body))
        await begun.wait()
        second = await client.post("/generate", json=body)
        assert second.status_code == 400
        assert second.json()["error"]["param"] == "rid"
        other = asyncio.create_task(client.post("/generate", json={**body, "rid": "two"}))
        go_on.set()
        assert [(await answer).status_code for answer in (first, other)] == [200, 200]
        assert (await client.post("/generate", json=body)).status_code == 200
