"""The HTTP client against servers of all kinds: Hive's, stock SGLang, OpenAI-compatible, broken."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
import tenacity
from hive_frontend import HttpClient, ModelError, Reply, Session, TreeOfThoughts, agent, arun, gen, run

from tests.frontend.http_server import Answer, Received, Server


def chat(request: Received) -> Answer:
    choice: dict[str, Any] = {"message": {"content": "hello"}, "finish_reason": "stop"}
    if "custom_params" in request.body:
        choice["meta_info"] = {"hive": {"tokens_replayed": 2, "tokens_generated": 3}, "completion_tokens": 5}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 5}}


def generate(request: Received) -> Answer:
    meta: dict[str, Any] = {"completion_tokens": 7, "finish_reason": {"type": "length", "length": 7}}
    if "custom_params" in request.body["sampling_params"]:
        meta["hive"] = {"tokens_replayed": 4, "tokens_generated": 3}
    return 200, {"text": " world", "meta_info": meta}


MODELS = {"GET /v1/models": lambda request: (200, {"data": [{"id": "the-model"}]})}
HIVE = {
    "POST /hive/agents": lambda request: (200, {}),
    "DELETE /hive/sessions/*": lambda request: (200, {}),
}
SGLANG = {**MODELS, "POST /v1/chat/completions": chat, "POST /generate": generate}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pauses between attempts."""

    monkeypatch.setattr("tenacity.wait_random_exponential", lambda **_: tenacity.wait_none())


async def test_chat_with_a_hive_server() -> None:
    async with Server({**HIVE, **SGLANG}) as server:
        client = HttpClient(server.url, api_key="secret", tenant="lab")
        async with Session(client, seed=1) as session:
            reply = await gen(
                [("system", "s"), ("user", "q")],
                agent="judge",
                temperature=0.5,
                top_k=5,
                stop="\n",
                choices=["a", "b"],
                sample=4,
            )
        await client.aclose()
    assert reply == "hello"
    assert isinstance(reply, Reply)
    assert (reply.tokens_generated, reply.tokens_replayed, reply.finish_reason) == (3, 2, "stop")
    (request,) = server.asked("/v1/chat/completions")
    seed = request.body.pop("seed")
    assert 0 <= seed < 2**63
    assert request.body == {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        "model": "the-model",
        "max_tokens": 256,
        "temperature": 0.5,
        "top_k": 5,
        "stop": ["\n"],
        "regex": "(a|b)",
        "custom_params": {
            "hive": {
                "agent": "judge",
                "session": session.id,
                "state": "0",
                "sample": 4,
                "replay": "stepwise",
                "tenant": "lab",
            }
        },
    }
    (registration,) = server.asked("/hive/agents")
    assert registration.body == {"name": "judge", "session": session.id}
    assert server.received[-1].method == "DELETE"
    assert server.received[-1].path == f"/hive/sessions/{session.id}"
    assert all(request.headers["authorization"] == "Bearer secret" for request in server.received)


async def test_raw_completions_with_a_hive_server() -> None:
    async with Server({**HIVE, **SGLANG}) as server, Session(HttpClient(server.url, replay="off"), seed=1):
        reply = await gen("hello", raw=True, max_tokens=7, json_schema={"type": "object"})
    assert (reply, reply.tokens_generated, reply.tokens_replayed, reply.finish_reason) == (
        " world",
        3,
        4,
        "length",
    )
    (request,) = server.asked("/generate")
    parameters = request.body["sampling_params"]
    assert request.body["text"] == "hello"
    assert parameters["max_new_tokens"] == 7
    assert parameters["json_schema"] == '{"type": "object"}'
    assert parameters["custom_params"]["hive"]["replay"] == "off"
    assert 0 <= parameters["sampling_seed"] < 2**63
    assert "temperature" not in parameters


async def test_json_schema_over_chat() -> None:
    async with Server({**HIVE, **SGLANG}) as server, Session(server.url):
        await gen("q", json_schema='{"type": "object"}')
    assert server.asked("/v1/chat/completions")[0].body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}},
    }


async def test_stock_sglang_is_asked_without_extras() -> None:
    async with Server(SGLANG) as server, Session(server.url + "/v1/"):
        reply, raw = await gen("q"), await gen("q", raw=True)
    assert (reply.tokens_generated, raw.tokens_generated) == (5, 7)
    assert (reply.tokens_replayed, raw.tokens_replayed) == (0, 0)
    assert not any("custom_params" in json.dumps(request.body) for request in server.received)
    assert len(server.asked("/hive/agents")) == 1
    assert not any(request.method == "DELETE" for request in server.received)


async def test_openai_compatible_servers() -> None:
    def completions(request: Received) -> Answer:
        return 200, {"choices": [{"text": "raw", "finish_reason": "length"}], "usage": {}}

    routes = {"POST /v1/chat/completions": chat, "POST /v1/completions": completions}
    async with Server(routes) as server, Session(HttpClient(server.url, model="named")):
        assert await gen("q") == "hello"
        assert await gen("q", raw=True) == "raw"
        assert await gen("q", raw=True) == "raw"
    assert len(server.asked("/generate")) == 1
    assert server.asked("/v1/completions")[0].body["model"] == "named"
    async with Server(routes) as server, Session(server.url):
        await gen("q")
    assert server.asked("/v1/chat/completions")[0].body["model"] == "default"


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_transient_errors_are_tried_again(status: int) -> None:
    failures = iter([(status, b"busy"), (status, b"busy")])
    async with Server(
        {**SGLANG, "POST /v1/chat/completions": lambda r: next(failures, None) or chat(r)}
    ) as server:
        async with Session(server.url):
            assert await gen("q") == "hello"
        assert len(server.asked("/v1/chat/completions")) == 3
        # Attempts end, and the last answer is what the error tells.
        always = {**SGLANG, "POST /v1/chat/completions": lambda request: (status, b"busy")}
        server.routes = always  # type: ignore[assignment]
        async with Session(HttpClient(server.url, attempts=2)):
            with pytest.raises(ModelError, match=f"the server answered {status}: busy"):
                await gen("q")
        assert len(server.asked("/v1/chat/completions")) == 5


async def test_lost_connections_are_tried_again() -> None:
    async with Server({**MODELS}) as server:
        url = server.url
    async with Session(HttpClient(url, attempts=2)):
        with pytest.raises(ModelError, match=r"POST http://127.0.0.1:\d+/hive/agents: .*connection"):
            await gen("q")


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "temperature is too high", "type": "BadRequestError", "code": 400}},
        {"object": "error", "message": "temperature is too high"},
        {"detail": "temperature is too high"},
        b"temperature is too high",
    ],
)
async def test_refusals_are_not_tried_again_and_say_why(body: Any) -> None:
    refusing = {**HIVE, **MODELS, "POST /v1/chat/completions": lambda request: (400, body)}
    async with Server(refusing) as server, Session(server.url):
        with pytest.raises(ModelError, match="the server answered 400: temperature is too high") as caught:
            await gen("q")
    assert caught.value.status == 400
    assert len(server.asked("/v1/chat/completions")) == 1


@pytest.mark.parametrize("body", [b"<html>", [1], {"choices": []}, {"choices": [{"text": 3}]}])
async def test_unusable_answers(body: Any) -> None:
    routes = {**MODELS, "POST /v1/chat/completions": lambda request: (200, body)}
    async with Server(routes) as server, Session(server.url):
        with pytest.raises(ModelError, match="answer"):
            await gen("q")


async def test_a_slow_server_is_not_asked_twice() -> None:
    async def slow(request: Received) -> Answer:
        await asyncio.sleep(60)
        raise AssertionError

    async with Server({**MODELS, "POST /v1/chat/completions": slow}) as server:
        async with Session(HttpClient(server.url, timeout_s=0.1)):
            with pytest.raises(ModelError, match="ReadTimeout"):
                await gen("q")
        assert len(server.asked("/v1/chat/completions")) == 1


async def test_cancelling_closes_the_connection() -> None:
    began = asyncio.Event()

    async def endless(request: Received) -> Answer:
        began.set()
        await asyncio.sleep(60)
        raise AssertionError

    @agent
    async def program() -> None:
        await gen("q")

    async with Server({**HIVE, **MODELS, "POST /v1/chat/completions": endless}) as server:
        task = asyncio.create_task(arun(program, model=server.url))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.hung_up.wait(), 5)
        assert any(request.method == "DELETE" for request in server.received)


async def test_a_session_that_cannot_be_ended_does_not_lose_its_results(
    caplog: pytest.LogCaptureFixture,
) -> None:
    routes = {**HIVE, **SGLANG, "DELETE /hive/sessions/*": lambda request: (500, {"error": "no"})}

    @agent
    async def program() -> str:
        return await gen("q")

    async with Server(routes) as server:
        with caplog.at_level(logging.WARNING, logger="hive_frontend.session"):
            assert (await arun(program, model=server.url)).value == "hello"
    assert "could not be told that session" in caplog.text


async def test_a_search_registers_each_agent_once() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="ask", branching=6))
    async def program() -> str:
        answer = await gen("q", name="ask")
        return answer + await gen("r", agent="other")

    async with Server({**HIVE, **SGLANG}) as server:
        result = await arun(program, model=server.url)
    assert [request.body["name"] for request in server.asked("/hive/agents")] == ["program", "other"]
    assert len(server.asked("/v1/models")) == 1
    assert result.totals.tokens_replayed == 24


async def test_one_client_for_several_loops() -> None:
    @agent
    async def program() -> str:
        return await gen("q")

    async with Server({**HIVE, **SGLANG}) as server:
        client = HttpClient(server.url)
        for _ in range(2):
            # A loop of its own in a thread of its own, as in a notebook.
            result = await asyncio.to_thread(run, program, model=client)
            assert result.value == "hello"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "localhost:30000"}, "the URL of a server looks like"),
        ({"url": "ftp://host"}, "the URL of a server looks like"),
        ({"url": "http://host", "replay": "always"}, 'replay must be "stepwise" or "off"'),
        ({"url": "http://host", "attempts": 0}, "attempts must be at least 1"),
        ({"url": "http://host", "tenant": "a b"}, "tenant must be 1 to 128 characters"),
    ],
)
def test_bad_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HttpClient(**arguments)
