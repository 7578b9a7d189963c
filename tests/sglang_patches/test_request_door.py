"""The door as ASGI: what it refuses, what it writes into bodies, and what it leaves alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
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

from hive.request_checks import Limits
from hive.request_tag import RequestError
from sglang_patches.request_door import RequestDoor, install

LIMITS = Limits(vocab_size=100, context_length=64, max_header_bytes=2048, max_body_bytes=10_000)
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


async def echo(request: Request) -> JSONResponse:
    """What the endpoint behind the door got."""
    raw = await request.body()
    length = request.headers.get("content-length")
    return JSONResponse({"raw": raw.decode("latin-1"), "length": length, "size": len(raw)})


async def stream(_: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two ", b"three"):
            await asyncio.sleep(0)
            yield part

    return StreamingResponse(parts())


async def refuse(_: Request) -> None:
    raise RequestError("field", "must be better")


def application() -> Starlette:
    routes = [Route(path, echo, methods=["GET", "POST", "PUT"]) for path in (*PATHS, "/other")]
    routes += [Route("/stream", stream, methods=["POST"]), Route("/refuse", refuse, methods=["POST"])]
    app = Starlette(routes=routes)
    install(app, LIMITS)
    return app


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door")


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


async def test_headers_are_written_into_sampling_params(client: httpx.AsyncClient) -> None:
    body = {
        "text": "hi",
        "sampling_params": {"top_k": 3, "custom_params": {"a": 1, "hive": {"agent": "b", "state": "s"}}},
    }
    got = await received(client, "/generate", body, agent="h", sample="2")
    assert got["sampling_params"] == {
        "top_k": 3,
        "custom_params": {"a": 1, "hive": {"agent": "h", "state": "s", "sample": 2}},
    }


@pytest.mark.parametrize("params", [None, {}, {"custom_params": None}, {"custom_params": {"hive": None}}])
async def test_headers_need_no_custom_params(client: httpx.AsyncClient, params: Any) -> None:
    got = await received(client, "/generate", {"text": "hi", "sampling_params": params}, agent="h")
    assert got["sampling_params"]["custom_params"]["hive"] == {"agent": "h"}


async def test_headers_tag_every_prompt_of_a_batch(client: httpx.AsyncClient) -> None:
    params = [{"custom_params": {"hive": {"sample": index}}} for index in range(2)]
    got = await received(client, "/generate", {"text": ["a", "b"], "sampling_params": params}, session="s")
    assert [item["custom_params"]["hive"] for item in got["sampling_params"]] == [
        {"sample": 0, "session": "s"},
        {"sample": 1, "session": "s"},
    ]


@pytest.mark.parametrize("path", PATHS[1:])
async def test_headers_are_written_beside_openais_fields(client: httpx.AsyncClient, path: str) -> None:
    got = await received(client, path, BODIES[path], agent="h")
    assert got["custom_params"] == {"hive": {"agent": "h"}}


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


@pytest.mark.parametrize(("method", "path"), [("GET", "/other"), ("POST", "/generate"), ("GET", "/nowhere")])
async def test_large_headers_are_refused_everywhere(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    answer = await client.request(method, path, headers={"x-padding": "x" * 2048})
    assert answer.status_code == 431
    assert answer.json()["error"]["message"] == "headers must be at most 2048 bytes together"


async def test_a_large_body_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/generate", json={"text": "x" * 10_000})
    assert answer.status_code == 413


async def test_an_endpoint_may_refuse_in_the_same_form(client: httpx.AsyncClient) -> None:
    answer = await client.post("/refuse")
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "field must be better",
        "type": "BadRequestError",
        "param": "field",
        "code": 400,
    }


async def test_other_endpoints_pass_untouched(client: httpx.AsyncClient) -> None:
    content = b"x" * 20_000
    answer = await client.post("/other", content=content, headers={"x-hive-agents": "a"})
    assert answer.json()["size"] == 20_000
    assert (await client.get("/generate")).status_code == 200
    assert (await client.post("/stream")).text == "one two three"


async def test_the_path_is_read_behind_a_proxy() -> None:
    app = Starlette(routes=[Mount("/api", routes=[Route("/generate", echo, methods=["POST"])])])

    async def behind_proxy(scope: Any, receive: Any, send: Any) -> None:
        await RequestDoor(app, LIMITS)({**scope, "root_path": "/api"}, receive, send)

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
        assert b"hive" in answer.content


def test_a_serving_app_takes_no_door() -> None:
    app = application()
    app.middleware_stack = app.build_middleware_stack()
    with pytest.raises(RuntimeError, match="before the app serves"):
        install(app, LIMITS)


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
    await RequestDoor(endpoint, LIMITS)(scope(), wire.receive, wire.send)
    assert seen == [
        {"type": "http.request", "body": b'{"text": "hi"}', "more_body": False},
        {"type": "http.disconnect"},
    ]


async def test_a_client_that_leaves_while_sending_reaches_no_endpoint() -> None:
    async def endpoint(*_: Any) -> None:
        raise AssertionError("half a request came through")

    wire = Wire({"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"})
    await RequestDoor(endpoint, LIMITS)(scope(), wire.receive, wire.send)
    assert wire.sent == []


async def test_a_large_body_is_refused_before_all_of_it_is_read() -> None:
    async def endpoint(*_: Any) -> None:
        raise AssertionError("a large body came through")

    wire = Wire(*({"type": "http.request", "body": b"x" * 6000, "more_body": True} for _ in range(9)))
    await RequestDoor(endpoint, LIMITS)(scope(), wire.receive, wire.send)
    assert wire.sent[0]["status"] == 413
    assert len(wire.messages) == 7


async def test_other_protocols_pass() -> None:
    seen: list[str] = []

    async def endpoint(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["type"])

    door = RequestDoor(endpoint, LIMITS)
    for kind in ("lifespan", "websocket"):
        wire = Wire()
        await door({"type": kind}, wire.receive, wire.send)
    assert seen == ["lifespan", "websocket"]


async def test_an_untagged_small_request_costs_little() -> None:
    async def endpoint(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()

    door = RequestDoor(endpoint, LIMITS)
    body = orjson.dumps({"text": "x" * 2000, "sampling_params": {"temperature": 0.7, "max_new_tokens": 64}})
    rounds = 500
    started = time.perf_counter()
    for _ in range(rounds):
        wire = Wire({"type": "http.request", "body": body, "more_body": False})
        await door(scope(), wire.receive, wire.send)
    assert (time.perf_counter() - started) / rounds < 100e-6


async def test_an_id_is_one_requests_until_it_is_over_with_all_that_follows() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> JSONResponse:
        begun.set()
        return JSONResponse({}, background=BackgroundTask(go_on.wait))

    app = Starlette(routes=[Route("/generate", slow, methods=["POST"])])
    install(app, LIMITS)
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
