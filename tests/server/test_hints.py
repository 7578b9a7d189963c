"""Hints on a real server: in bodies, headers and messages of their own, from clients and from what the server sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hive_frontend import Beam, HttpClient, RunStore, agent, arun, ask_human, gen, run, score, tool

from hive.server.server_process import ServerProcess
from tests.repetitions import LAYERS_FLAGS

pytestmark = pytest.mark.server

CALL = r'<tool_call>\n\{"name": "ls", "arguments": \{\}\}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def client(launch_server: Callable[..., ServerProcess]) -> Iterator[httpx.Client]:
    """A client of a server that parses tool calls, whose accounting must be right afterwards."""
    server = launch_server("--tool-call-parser", "qwen25", *LAYERS_FLAGS)
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client
        assert client.post("/hive/check").json() == {"idle": True, "problems": []}


def hints(client: httpx.Client) -> dict[str, int]:
    counted: dict[str, int] = client.get("/hive/stats").json()["hints"]
    return counted


def counted(client: httpx.Client, *names: str, before: dict[str, int]) -> bool:
    """Whether exactly these hints have come since."""
    after = hints(client)
    return after == {name: before.get(name, 0) + names.count(name) for name in {*before, *names}}


def generate(
    client: httpx.Client, tag: dict[str, Any], headers: dict[str, str] | None = None
) -> httpx.Response:
    params = {"max_new_tokens": 4, "custom_params": {"hive": tag}}
    return client.post("/generate", json={"text": "One, two,", "sampling_params": params}, headers=headers)


def chat(client: httpx.Client, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    headers = fields.pop("headers", None)
    body = {"model": "any", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 48, **fields}
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def test_requests_carry_hints(client: httpx.Client) -> None:
    before = hints(client)
    answer = generate(client, {"session": "a", "expects": {"event": "tool", "seconds": 30}, "kv_priority": 5})
    assert answer.status_code == 200, answer.text
    assert counted(client, "tool", "kv_priority", before=before)
    before = hints(client)
    headers = {"x-hive-session": "a", "x-hive-expects-event": "human", "x-hive-retain": "60"}
    assert generate(client, {}, headers).status_code == 200
    assert counted(client, "human", "retain", before=before)
    sample = {"hive": {"session": "a", "discard": True}}
    assert client.post("/hive/generate", json={"text": "Hi", "samples": [sample, {}]}).status_code == 200
    assert hints(client)["discard"] == 1


@pytest.mark.parametrize(
    ("tag", "headers", "param"),
    [
        ({"expects": {"event": "lunch"}}, {}, "sampling_params.custom_params.hive.expects.event"),
        (
            {"expects": {"event": "tool", "seconds": -1}},
            {},
            "sampling_params.custom_params.hive.expects.seconds",
        ),
        ({"kv_priority": 1000}, {}, "sampling_params.custom_params.hive.kv_priority"),
        ({}, {"x-hive-retain": "forever"}, "x-hive-retain"),
        ({}, {"x-hive-expects-seconds": "5"}, "x-hive-expects-seconds"),
    ],
)
def test_bad_hints_are_refused(
    client: httpx.Client, tag: dict[str, Any], headers: dict[str, str], param: str
) -> None:
    answer = generate(client, tag, headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_hints_come_between_requests_and_only_to_ones_own_sessions(client: httpx.Client) -> None:
    assert generate(client, {"session": "b", "tenant": "red"}).status_code == 200
    before = hints(client)
    hint = {"expects": {"event": "tool", "seconds": 1.5}}
    for tenant, known in (("red", True), ("blue", False)):
        headers = {"x-hive-tenant": tenant}
        answer = client.post("/hive/sessions/b/hints", json=hint, headers=headers)
        assert answer.json() == {"session": "b", "known": known}
    answer = client.post("/hive/hints", json={"hints": [{"session": "b", **hint}, {"session": "c", **hint}]})
    assert answer.json() == {"known": [False, False]}
    assert counted(client, "tool", before=before)
    answer = client.post("/hive/hints", json={"hints": [{"session": "b", "expects": {}}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "hints[0].expects.event"


@pytest.mark.parametrize("stream", [False, True])
def test_the_server_sees_tool_calls(client: httpx.Client, stream: bool) -> None:
    before = hints(client)
    headers = {"x-claude-code-session-id": "0c6f7d5e-claude", "x-hive-agent": "coder"}
    answer = chat(client, tools=[TOOL], regex=CALL, stream=stream, headers=headers)
    assert "tool_calls" in answer.text
    assert counted(client, "tool", before=before)


def test_other_systems_sessions_are_sessions(client: httpx.Client) -> None:
    for headers, fields, session in (
        ({"x-session-id": "ses_opencode"}, {}, "ses_opencode"),
        (
            {},
            {"prompt_cache_key": "d2e70091-3007-41a3-a916-cb8b0d3098de"},
            "d2e70091-3007-41a3-a916-cb8b0d3098de",
        ),
        ({"x-hive-session": "ours", "x-session-id": "theirs"}, {}, "ours"),
    ):
        chat(client, headers=headers, **fields)
        assert client.delete(f"/hive/sessions/{session}").json() == {"session": session, "requests": 1}
    assert client.delete("/hive/sessions/theirs").status_code == 404
    body = {"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi."}]}
    body["metadata"] = {"user_id": f"user_{'0' * 64}_account__session_11111111-2222"}
    assert client.post("/v1/messages", json=body).status_code == 200
    assert client.delete("/hive/sessions/11111111-2222").status_code == 200


def test_other_systems_sessions_change_no_draw(client: httpx.Client) -> None:
    tag = {"state": "root", "sample": 0}
    plain = generate(client, tag).json()
    named = generate(client, tag, {"x-session-id": "elsewhere"}).json()
    assert named["text"] == plain["text"]
    assert named["meta_info"]["hive"]["tokens_replayed"] == 4


async def test_a_run_gives_hints_by_itself(client: httpx.Client) -> None:
    async def compile_program() -> None:
        await asyncio.sleep(0.2)

    @agent(supervisor=Beam(at="step", width=1, expand=3))
    async def program() -> str:
        for _ in range(2):
            answer = await gen("Say a number.", name="step", max_tokens=8)
            score(len(answer))
        await tool(compile_program)
        return answer

    before = hints(client)
    model = HttpClient(str(client.base_url))
    await arun(program, model=model, seed=1)
    await model.aclose()
    after = hints(client)
    assert after["discard"] - before.get("discard", 0) == 2
    assert after["tool"] > before.get("tool", 0)
    assert model.hints_lost == 0


def test_a_run_that_waits_for_a_person_keeps_its_session(client: httpx.Client, tmp_path: Path) -> None:
    @agent
    async def program() -> str:
        return await gen("Say a number.", max_tokens=8) + await ask_human("Which?")

    before = hints(client)
    model = str(client.base_url)
    store = RunStore(tmp_path / "runs.db")
    waiting = run(program, model=model, store=store, run_id="r")
    after = hints(client)
    assert after["human"] - before.get("human", 0) == 1
    answer = client.post(f"/hive/sessions/{waiting.session}/hints", json={"kv_priority": 1})
    assert answer.json() == {"session": waiting.session, "known": True}
    store.answer("r", waiting.questions[0].at, " one")
    done = run(program, model=model, store=store, run_id="r")
    assert done.value is not None
    assert done.value.endswith(" one")
    client.delete(f"/hive/sessions/{waiting.session}")
