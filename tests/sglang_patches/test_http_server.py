"""The ``/hive`` routes over a scheduler's state, without an engine: whose agents and sessions who sees and ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from fastapi import FastAPI
from sglang.srt.managers.io_struct import (
    DumperControlReqInput,
    DumperControlReqOutput,
    msgpack_decode,
    msgpack_encode,
)

from hive.server.access import Access
from hive.server.agents.registry import AgentRegistry
from hive.server.logits_cache.cache import CachedRequest, LogitsCache
from hive.server.logits_cache.packing import pack
from hive.server.logits_cache.sampling import SamplingRule
from hive.server.request_checks import Limits
from sglang_patches.hooks.scheduler import around_handle_dumper_control
from sglang_patches.http.hive_routes import merge_ranks, router
from sglang_patches.http.request_middleware import install
from sglang_patches.scheduling.state import SchedulerState
from tests.hive.logits_cache.truth import whole_head

KEYS = Access(api_key="k", admin_api_key="a")
USER, OPERATOR = {"authorization": "Bearer k"}, {"authorization": "Bearer a"}
RED, BLUE = {**USER, "x-hive-tenant": "red"}, {**USER, "x-hive-tenant": "blue"}


class Schedulers:
    """Two data-parallel ranks behind a tokenizer manager; messages travel as between SGLang's processes."""

    def __init__(self) -> None:
        self.states = [
            SchedulerState(AgentRegistry(8), None, None, None, "nothing", [], []) for _ in range(2)
        ]

    async def dumper_control(self, message: DumperControlReqInput) -> list[DumperControlReqOutput]:
        answers: list[DumperControlReqOutput] = []
        for state in self.states:
            channel = SimpleNamespace(send_output=lambda answer, _request: answers.append(answer))
            rank = SimpleNamespace(hive=state, ipc_channels=SimpleNamespace(send_to_tokenizer=channel))
            around_handle_dumper_control(_not_sglangs, rank, msgpack_decode(msgpack_encode(message)))
        return [msgpack_decode(msgpack_encode(answer)) for answer in answers]


def _not_sglangs(*_: Any) -> None:
    raise AssertionError("a message of Hive's went to SGLang")


async def client_of(access: Access) -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(router(Schedulers(), access))
    install(app, Limits(vocab_size=100, context_length=64), access)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with await client_of(KEYS) as client:
        for headers, names in ((RED, ("planner", "writer")), (BLUE, ("planner",)), (USER, ("planner",))):
            for name in names:
                body = {"name": name, "session": "run"}
                assert (await client.post("/hive/agents", json=body, headers=headers)).status_code == 200
        yield client


async def agents(client: httpx.AsyncClient, headers: dict[str, str]) -> set[tuple[str | None, str]]:
    answer = await client.get("/hive/agents", headers=headers)
    return {(agent["tenant"], agent["name"]) for agent in answer.json()["agents"]}


async def test_each_sees_its_own_and_the_operator_all(client: httpx.AsyncClient) -> None:
    red = {("red", "planner"), ("red", "writer")}
    assert await agents(client, RED) == red
    assert await agents(client, USER) == {(None, "planner")}
    assert await agents(client, OPERATOR) == red | {("blue", "planner"), (None, "planner")}
    assert await agents(client, {**OPERATOR, "x-hive-tenant": "red"}) == red
    assert await agents(client, {**USER, "x-hive-tenant": "green"}) == set()


async def test_statistics_are_a_tenants_or_the_whole_servers(client: httpx.AsyncClient) -> None:
    own = (await client.get("/hive/stats", headers=RED)).json()
    assert own.keys() == {"version", "tenant", "agents", "sharing", "sessions"}
    # One on each rank.
    assert own["sessions"] == {"active": 2}
    everything = (await client.get("/hive/stats", headers=OPERATOR)).json()
    assert everything.keys() >= {"logits_cache", "radix_cache", "rounds"}
    assert everything["sessions"] == {"active": 6, "ended": 0}


async def test_a_session_is_ended_by_its_own_tenant(client: httpx.AsyncClient) -> None:
    for headers, status in (({**USER, "x-hive-tenant": "green"}, 404), (RED, 200), (RED, 404), (BLUE, 200)):
        assert (await client.delete("/hive/sessions/run", headers=headers)).status_code == status
    assert (await client.get("/hive/stats", headers=OPERATOR)).json()["sessions"] == {"active": 2, "ended": 4}
    assert (await client.delete("/hive/sessions/red|run", headers=USER)).status_code == 400


async def test_hints_are_for_a_tenants_own_sessions(client: httpx.AsyncClient) -> None:
    hints = {
        "hints": [
            {"session": "run", "expects": {"event": "tool", "seconds": 30}},
            {"session": "gone", "discard": True},
            {"session": "run", "retain": 60, "kv_priority": 5},
        ]
    }
    for headers, known in ((RED, True), ({**USER, "x-hive-tenant": "green"}, False), (USER, True)):
        answer = await client.post("/hive/hints", json=hints, headers=headers)
        assert answer.json() == {"known": [known, False, known]}
        answer = await client.post("/hive/sessions/run/hints", json={"discard": True}, headers=headers)
        assert answer.json() == {"session": "run", "known": known}
    answer = await client.post("/hive/sessions/red|run/hints", json={"discard": True}, headers=USER)
    assert answer.status_code == 400
    counted = {"tool": 4, "retain": 4, "kv_priority": 4, "discard": 4}
    assert (await client.get("/hive/stats", headers=OPERATOR)).json()["hints"] == counted, "on both ranks"
    assert "hints" not in (await client.get("/hive/stats", headers=RED)).json()


@pytest.mark.parametrize(
    ("path", "content", "param"),
    [
        ("/hive/hints", b"{", "body"),
        (
            "/hive/hints",
            b'{"hints": [{"session": "run", "expects": {"event": "x"}}]}',
            "hints[0].expects.event",
        ),
        ("/hive/sessions/run/hints", b'{"retain": -1}', "retain"),
        ("/hive/sessions/run/hints", b"[]", "body"),
    ],
)
async def test_a_bad_hint_is_refused_with_its_field(
    client: httpx.AsyncClient, path: str, content: bytes, param: str
) -> None:
    answer = await client.post(path, content=content, headers=USER)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_ratios_of_ranks_are_those_of_their_sums() -> None:
    caches = [LogitsCache(10**6) for _ in range(2)]
    rule = SamplingRule.of(0.7, -1, 1.0, 0.0)
    for cache, replayed, outputs in zip(caches, (0, 3), (1, 2), strict=True):
        for number in range(outputs):
            request = CachedRequest("", rule, 1, [1, number])
            cache.record(request, [5], pack(whole_head(np.zeros(10 * outputs, dtype=np.float32), 0.7)))
            cache.depart(request, [5, 6, 7, 8], ended=True, replayed=replayed)
    parts = [{"logits_cache": cache.summary()} for cache in caches]
    assert [part["logits_cache"]["hit_ratio"] for part in parts] == [0.0, 0.75]
    merged = merge_ranks(parts)["logits_cache"]
    assert merged["hit_ratio"] == 0.5, "6 of 12 tokens"
    assert merged["row_bytes"] == sum(cache.trie.nbytes for cache in caches)
    assert merged["bytes_per_token"] == pytest.approx(merged["row_bytes"] / 3, abs=0.1)
    assert merged.keys() == parts[0]["logits_cache"].keys()


@pytest.mark.parametrize("access", [Access(), Access(api_key="k")])
async def test_without_an_admin_key_everybody_is_the_operator(access: Access) -> None:
    async with await client_of(access) as client:
        for headers in (RED, USER):
            await client.post("/hive/agents", json={"name": "planner"}, headers=headers)
        assert await agents(client, USER) == {("red", "planner"), (None, "planner")}
        assert await agents(client, RED) == {("red", "planner")}


@pytest.mark.parametrize("name", ["red|planner", "a b", "", "x" * 129])
async def test_no_name_holds_a_tenant(client: httpx.AsyncClient, name: str) -> None:
    assert (await client.post("/hive/agents", json={"name": name}, headers=USER)).status_code == 400
    body = {"name": "planner", "session": name}
    assert (await client.post("/hive/agents", json=body, headers=USER)).status_code == 400
