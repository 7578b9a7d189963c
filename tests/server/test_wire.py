"""Agent tags on their way in and out: body, headers, endpoints, counts, metrics."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.server

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client(server: Any) -> Any:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


def generate(
    client: httpx.Client, tag: dict[str, Any], headers: dict[str, str] | None = None, **params: Any
) -> Any:
    params = {"max_new_tokens": 6, "custom_params": {"hive": tag}, **params}
    answer = client.post("/generate", json={"text": PROMPT, "sampling_params": params}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["meta_info"]["hive"]


def agents(client: httpx.Client) -> dict[str, Any]:
    return {agent["name"]: agent for agent in client.get("/hive/agents").json()["agents"]}


def test_generate_says_what_was_done(client: httpx.Client) -> None:
    tag = {"agent": "wire.generate", "session": "wire-1", "state": "root", "sample": 3}
    done = generate(client, tag)
    assert done.items() >= tag.items()
    assert done["tokens_generated"] + done["tokens_replayed"] == 6


def test_headers_win_over_the_body(client: httpx.Client) -> None:
    done = generate(
        client,
        {"agent": "from-body", "session": "kept"},
        {"x-hive-agent": "from-header", "x-hive-sample": "2"},
    )
    assert (done["agent"], done["session"], done["sample"]) == ("from-header", "kept", 2)
    assert agents(client)["from-header"]["requests"] == 1
    assert "from-body" not in agents(client)


def test_chat_completions_carry_the_tag(client: httpx.Client) -> None:
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": "Say hi."}],
        "max_tokens": 5,
        "custom_params": {"hive": {"agent": "wire.chat"}},
    }
    done = client.post("/v1/chat/completions", json=body).json()["choices"][0]["meta_info"]["hive"]
    assert done["agent"] == "wire.chat"
    assert agents(client)["wire.chat"]["tokens_generated"] == done["tokens_generated"]


def test_completions_carry_the_tag(client: httpx.Client) -> None:
    body = {
        "model": "any",
        "prompt": PROMPT,
        "max_tokens": 5,
        "custom_params": {"hive": {"agent": "wire.complete"}},
    }
    done = client.post("/v1/completions", json=body).json()["choices"][0]["meta_info"]["hive"]
    assert done["agent"] == "wire.complete"
    assert agents(client)["wire.complete"]["requests"] == 1


def test_streams_say_what_was_done_in_every_chunk(client: httpx.Client) -> None:
    params = {"max_new_tokens": 6, "sampling_seed": 11, "custom_params": {"hive": {"agent": "wire.stream"}}}
    body = {"text": PROMPT, "sampling_params": params, "stream": True}
    totals = []
    for _ in range(2):
        with client.stream("POST", "/generate", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
        last = httpx.Response(200, content=lines[-1].removeprefix("data: ")).json()
        totals.append(last)
    assert totals[0]["text"] == totals[1]["text"]
    assert totals[1]["meta_info"]["hive"]["tokens_replayed"] == 6


def test_agents_register_and_are_listed(client: httpx.Client) -> None:
    assert (
        client.post("/hive/agents", json={"name": "wire.known", "description": "a test"}).status_code == 200
    )
    agent = agents(client)["wire.known"]
    assert agent["registered"]
    assert agent["description"] == "a test"
    assert agent["requests"] == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"name": "two words"}, "name"),
        ({"name": ""}, "name"),
        ({}, "name"),
        ({"name": "x", "colour": "red"}, "colour"),
        ({"name": "x", "description": 5}, "description"),
    ],
)
def test_a_bad_registration_names_the_field(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    answer = client.post("/hive/agents", json=body)
    assert answer.status_code == 400
    assert words in answer.text


def test_sessions_end_once(client: httpx.Client) -> None:
    generate(client, {"session": "wire-ends"})
    assert client.delete("/hive/sessions/wire-ends").json() == {"session": "wire-ends", "requests": 1}
    again = client.delete("/hive/sessions/wire-ends")
    assert again.status_code == 404
    assert "wire-ends" in again.text


def test_stats_server_info_and_prometheus_agree(client: httpx.Client) -> None:
    generate(client, {"agent": "wire.metrics"}, sampling_seed=1)
    generate(client, {"agent": "wire.metrics"}, sampling_seed=1)
    stats = client.get("/hive/stats").json()
    agent = next(agent for agent in stats["agents"] if agent["name"] == "wire.metrics")
    assert agent["requests"] == 2
    assert agent["tokens_replayed"] >= 6
    info = client.get("/server_info").json()["internal_states"][0]["hive"]
    assert info["logits_cache"]["nodes"] == stats["logits_cache"]["nodes"]
    metrics = client.get("/metrics").text
    assert 'hive_requests_total{agent="wire.metrics"} 2.0' in metrics
    assert f'hive_tokens_replayed_total{{agent="wire.metrics"}} {agent["tokens_replayed"]}.0' in metrics
    assert f"hive_logits_cache_nodes {stats['logits_cache']['nodes']}.0" in metrics
