"""A server with both keys: who gets in by which route, and what is shown to whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from hive.server_process import ServerProcess
from sglang_patches import routes

pytestmark = pytest.mark.server

KEY, ADMIN_KEY = "user-key-5f1c", "admin-key-93ab"
USER = {"authorization": f"Bearer {KEY}"}
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
SHORT = {"max_new_tokens": 4, "temperature": 0}
CHAT = [{"role": "user", "content": "Say hi."}]

GENERATING: dict[str, dict[str, Any]] = {
    "/generate": {"text": "Hi", "sampling_params": SHORT},
    "/v1/completions": {"model": "any", "prompt": "Hi", "max_tokens": 4},
    "/v1/chat/completions": {"model": "any", "messages": CHAT, "max_tokens": 4},
    "/invocations": {"model": "any", "messages": CHAT, "max_tokens": 4},
    "/vertex_generate": {"instances": [{"text": "Hi"}], "parameters": {"sampling_params": SHORT}},
    "/v1/responses": {"model": "any", "input": "Say hi.", "max_output_tokens": 4, "store": False},
    "/v1/messages": {"model": "any", "messages": CHAT, "max_tokens": 4},
    "/api/chat": {"model": "any", "messages": CHAT, "stream": False, "options": {"num_predict": 4}},
    "/api/generate": {"model": "any", "prompt": "Hi", "stream": False, "options": {"num_predict": 4}},
    "/v1/score": {"model": "any", "query": "Is it?", "items": [" yes"], "label_token_ids": [1, 2]},
}
"""A request to each route by which this model can be asked."""

OTHER_MODELS = {
    *("/encode", "/classify", "/v1/embeddings", "/v1/classify", "/v1/rerank"),
    *("/v1/audio/transcriptions", "/v1/realtime", "/v1/decisions", "/v1/systemone"),
}
"""Routes of the other generating ones, for other kinds of models or other releases of SGLang."""

OWN = [
    ("GET", "/hive/agents"),
    ("POST", "/hive/agents"),
    ("GET", "/hive/stats"),
    ("DELETE", "/hive/sessions/any"),
    ("POST", "/hive/render"),
]


@pytest.fixture(scope="module")
def keyed(launch_server: Callable[..., ServerProcess]) -> Iterator[ServerProcess]:
    server = launch_server("--api-key", KEY, "--admin-api-key", ADMIN_KEY, "--enable-metrics")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(keyed: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=keyed.url, timeout=120) as client:
        yield client


def agents(client: httpx.Client, **headers: str) -> dict[str, Any]:
    answer = client.get("/hive/agents", headers={**USER, **headers})
    assert answer.status_code == 200, answer.text
    return {agent["name"]: agent for agent in answer.json()["agents"]}


def test_every_generating_route_has_a_request_here() -> None:
    known = {path for path in {*routes.CHECKED, *routes.GENERATING} if not path.startswith("/hive/")}
    assert known == {*GENERATING, *OTHER_MODELS}


@pytest.mark.parametrize("path", sorted({*GENERATING, *OTHER_MODELS} - {"/v1/realtime"}))
def test_nothing_is_generated_without_a_key(client: httpx.Client, path: str) -> None:
    body = GENERATING.get(path, {})
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}):
        assert client.post(path, json=body, headers=headers).status_code == 401


@pytest.mark.parametrize(("method", "path"), OWN)
def test_hives_routes_need_a_key(client: httpx.Client, method: str, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}):
        assert client.request(method, path, headers=headers).status_code == 401
    assert client.request(method, path, headers=USER).status_code != 401


@pytest.mark.parametrize(
    "path", ["/flush_cache", "/abort_request", "/load_lora_adapter", "/update_weights_from_disk"]
)
def test_administration_needs_the_admin_key(client: httpx.Client, path: str) -> None:
    for headers in ({}, USER):
        assert client.post(path, json={}, headers=headers).status_code == 401
    assert client.post(path, json={}, headers=ADMIN).status_code != 401


@pytest.mark.parametrize("path", sorted(GENERATING))
def test_headers_say_who_asks_by_every_route(client: httpx.Client, path: str) -> None:
    name = "sec" + path.replace("/", ".")
    body = {**GENERATING[path], "custom_params": {"hive": {"agent": "from-body"}}}
    answer = client.post(path, json=body, headers={**USER, "x-hive-agent": name})
    assert answer.status_code == 200, answer.text
    known = agents(client)
    assert known[name]["requests"] >= 1
    assert "from-body" not in known


@pytest.mark.parametrize("path", sorted(GENERATING))
def test_bad_headers_and_large_bodies_are_refused_by_every_route(client: httpx.Client, path: str) -> None:
    answer = client.post(path, json=GENERATING[path], headers={**USER, "x-hive-agent": "two words"})
    assert answer.status_code == 400, answer.text
    assert "x-hive-agent" in answer.text


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            "/vertex_generate",
            {"instances": [{"text": "Hi"}], "parameters": {"http_worker_ipc": "x"}},
            "http_worker_ipc",
        ),
        (
            "/vertex_generate",
            {"instances": [{"text": "Hi"}], "parameters": {"top_logprobs_num": 2**31}},
            "top_logprobs",
        ),
        ("/vertex_generate", {"instances": [{"text": "Hi"}], "parameters": {"text": "b"}}, "parameters.text"),
        ("/vertex_generate", {"instances": [{}]}, "instances[0]"),
        ("/vertex_generate", {"instances": "Hi"}, "instances"),
        ("/invocations", {"model": "any", "messages": CHAT, "n": 10**6}, "n must"),
        (
            "/api/generate",
            {"model": "any", "prompt": "Hi", "stream": False, "options": {"top_k": 2**40}},
            "top_k",
        ),
        ("/v1/messages", {"model": "any", "messages": CHAT, "max_tokens": 4, "top_k": 2**40}, "top_k"),
        ("/v1/responses", {"model": "any", "input": "Hi", "top_k": 2**40, "store": False}, "top_k"),
        ("/generate", {"text": "Hi", "image_data": "file:///etc/passwd"}, "image_data"),
    ],
)
def test_bad_requests_are_refused_by_every_route(
    client: httpx.Client, path: str, body: dict[str, Any], field: str
) -> None:
    answer = client.post(path, json=body, headers=USER)
    assert 400 <= answer.status_code < 500, answer.text
    assert field in answer.text
    assert client.post("/generate", json=GENERATING["/generate"], headers=USER).is_success


@pytest.mark.parametrize("path", sorted(routes.PICKLED))
def test_no_pickle_comes_in_with_any_key(client: httpx.Client, path: str) -> None:
    for headers in (USER, ADMIN):
        answer = client.post(path, json={"serialized_named_tensors": ["gASVAAAA"]}, headers=headers)
        assert answer.status_code in (401, 403)
    assert (
        "--hive-allow-pickle-routes"
        in client.post(path, json={}, headers=ADMIN if answer.status_code == 403 else USER).text
    )


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_no_keys_are_shown(client: httpx.Client, keyed: ServerProcess, path: str) -> None:
    answer = client.get(path, headers=USER)
    assert answer.status_code == 200
    assert answer.json()["api_key"] == "***"
    assert answer.json()["internal_states"][0]["hive"]["logits_cache"]["nodes"] >= 0
    for text in (answer.text, keyed.log_path.read_text()):
        assert KEY not in text
        assert ADMIN_KEY not in text


def test_registrations_are_small(client: httpx.Client) -> None:
    answer = client.post("/hive/agents", content=b" " * 70_000, headers=USER)
    assert answer.status_code == 413


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
def test_the_websocket_needs_a_key(client: httpx.Client, headers: dict[str, str]) -> None:
    handshake = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert client.get("/v1/realtime", headers={**handshake, **headers}).status_code == 403


def test_a_path_with_a_lines_end_is_no_way_around(client: httpx.Client) -> None:
    assert client.post("/generate%0a", json={"text": "Hi"}, headers=USER).status_code == 400


def test_a_host_that_looks_like_a_path_is_no_way_around(client: httpx.Client) -> None:
    for host in ("x/health?", "x/metrics#"):
        answer = client.post("/generate", json=GENERATING["/generate"], headers={"host": host})
        assert answer.status_code in (400, 401)


def test_the_server_is_still_whole(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/metrics").status_code == 200
