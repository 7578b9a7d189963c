"""The client of servers behind a router that has none of Hive's routes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hive_frontend import HttpClient, ModelError
from hive_frontend.client.messages import Message

from tests.frontend.http_server import Server
from tests.frontend.test_http_client import HIVE, MODELS, SGLANG, WORLD, ask, chat, generate

ROUTER = {"POST /generate": generate, "POST /v1/chat/completions": chat, **MODELS}
GONE = "http://127.0.0.1:9"
TAG = {"agent": "judge", "session": "s-1", "state": "0.1", "sample": 4, "replay": "stepwise", "tenant": "lab"}


async def test_tokens_come_from_the_router_and_all_else_from_the_servers() -> None:
    async with Server(ROUTER) as router, Server(HIVE) as one, Server(HIVE) as two:
        client = HttpClient(router.url, api_key="secret", tenant="lab", servers=[one.url, two.url])
        await client.register("judge", "s-1")
        assert await client.complete(ask("q", sample=4)) == WORLD
        await client.end_session("s-1")
        assert await asyncio.to_thread(client.render, [Message("user", "q")]) == "<user>q"
        await client.aclose()
    (request,) = router.received
    assert request.body["sampling_params"]["custom_params"]["hive"] == TAG
    names = {f"x-request-id-hive-{name}": str(value) for name, value in TAG.items()}
    assert names.items() <= request.headers.items()
    assert request.headers["x-smg-routing-key"] == "s-1"
    assert "x-hive-tenant" not in request.headers
    for server in (one, two):
        assert all(told.headers["x-hive-tenant"] == "lab" for told in server.received)
        assert [told.body for told in server.asked("/hive/agents")] == [{"name": "judge", "session": "s-1"}]
        assert server.asked("/hive/sessions/s-1")
    received = [*router.received, *one.received, *two.received]
    assert all(request.headers["authorization"] == "Bearer secret" for request in received)


async def test_a_server_that_is_down_is_passed_over() -> None:
    began = time.monotonic()
    async with Server(ROUTER) as router, Server(HIVE) as up:
        client = HttpClient(router.url, servers=[GONE, up.url])
        await client.register("judge", "s-1")
        assert await client.complete(ask("q")) == WORLD
        assert (await client.complete(ask("other"))).text == WORLD.text
        await client.end_session("s-1")
        assert await asyncio.to_thread(client.render, [Message("user", "r")]) == "<user>r"
        await client.aclose()
    assert len(up.asked("/hive/render")) == 3
    assert time.monotonic() - began < 2


async def test_without_any_server_the_error_names_one() -> None:
    client = HttpClient("http://127.0.0.1:8", servers=[GONE, GONE], attempts=1)
    for call in (client.register("a", "s-1"), client.complete(ask("q"))):
        with pytest.raises(ModelError, match=r"http://127\.0\.0\.1:9/hive/"):
            await call
    with pytest.raises(ModelError, match=r"http://127\.0\.0\.1:9/hive/render"):
        await asyncio.to_thread(client.render, [Message("user", "q")])
    await client.aclose()


async def test_what_a_server_refuses_is_an_error() -> None:
    def refuse(_request: Any) -> Any:
        return 400, {"error": {"message": "name must be short"}}

    refusing = {"POST /hive/agents": refuse, "POST /hive/render": refuse}
    async with Server(HIVE) as one, Server(refusing) as two:
        client = HttpClient(GONE, servers=[two.url, one.url])
        for call in (client.register("a", "s-1"), client.complete(ask("q"))):
            with pytest.raises(ModelError, match="name must be short"):
                await call
        with pytest.raises(ModelError, match="name must be short"):
            await asyncio.to_thread(client.render, [Message("user", "q")])
        await client.aclose()


async def test_an_agent_may_be_what_requests_are_routed_by() -> None:
    async with Server(ROUTER) as router, Server(HIVE) as server:
        client = HttpClient(router.url, servers=[server.url], affinity="agent")
        await client.complete(ask("q"))
        await client.aclose()
    assert router.received[0].headers["x-smg-routing-key"] == "judge"


async def test_requests_to_other_servers_behind_a_router_have_no_extensions() -> None:
    async with Server(ROUTER) as router, Server(SGLANG) as stock:
        client = HttpClient(router.url, servers=[stock.url])
        await client.complete(ask("q", sample=2))
        await client.end_session("s-1")
        await client.aclose()
    (request,) = router.received
    assert "custom_params" not in request.body
    assert request.headers["x-smg-routing-key"] == "s-1"
    assert not any(name.startswith("x-request-id-hive-") for name in request.headers)


@pytest.mark.parametrize("servers", [[], "http://localhost:30000"])
def test_servers_are_a_list_of_urls(servers: Any) -> None:
    with pytest.raises(ValueError, match="servers must be a list of the URLs"):
        HttpClient("http://localhost:30000", servers=servers)


def test_affinity_is_by_session_or_agent() -> None:
    with pytest.raises(ValueError, match='affinity must be "session" or "agent"'):
        HttpClient("http://localhost:30000", affinity="state")  # type: ignore[arg-type]
