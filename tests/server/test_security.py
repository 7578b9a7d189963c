"""A server with both keys: who gets in by which route, and what is shown to whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from hive.server.server_process import ServerProcess
from sglang_patches.http import routes

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
    ("POST", "/hive/generate"),
    ("DELETE", "/hive/requests/any"),
    ("GET", "/hive/events"),
]


@pytest.fixture(scope="module")
def keyed(launch_server: Callable[..., ServerProcess]) -> Iterator[ServerProcess]:
    """A server of its own: no other has two keys."""
    keys = ("--api-key", KEY, "--admin-api-key", ADMIN_KEY)
    server = launch_server(*keys, "--served-model-name", "any", "--enable-metrics")
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
    for headers in (USER, ADMIN):
        with client.stream(method, path, headers=headers) as answer:
            assert answer.status_code != 401


@pytest.mark.parametrize(
    "path",
    ["/hive/check", "/flush_cache", "/abort_request", "/load_lora_adapter", "/update_weights_from_disk"],
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
def test_no_pickle_comes_in_whatever_the_key(client: httpx.Client, path: str) -> None:
    answer = client.post(path, json={"serialized_named_tensors": ["gASVAAAA"]}, headers=ADMIN)
    assert answer.status_code == 403
    assert "--hive-allow-pickle-routes" in answer.text


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_no_keys_are_shown(client: httpx.Client, keyed: ServerProcess, path: str) -> None:
    answer = client.get(path, headers=USER)
    assert answer.status_code == 200
    assert answer.json()["api_key"] == "***"
    assert answer.json()["internal_states"][0]["hive"]["logits_cache"]["nodes"] >= 0
    for text in (answer.text, keyed.log_path.read_text()):
        assert KEY not in text
        assert ADMIN_KEY not in text


def test_server_info_tells_of_no_agents(client: httpx.Client) -> None:
    client.post("/generate", json=GENERATING["/generate"], headers={**USER, "x-hive-agent": "sec.unseen"})
    assert "sec.unseen" not in client.get("/server_info", headers=USER).text


def ask(client: httpx.Client, tenant: str | None, text: str, **fields: Any) -> dict[str, Any]:
    """What the answer says beside its text."""
    headers = {**USER, "x-hive-agent": "sec.planner", "x-hive-session": "sec.run"}
    if tenant is not None:
        headers["x-hive-tenant"] = tenant
    answer = client.post(
        "/generate", json={"text": text, "sampling_params": SHORT, **fields}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    meta: dict[str, Any] = answer.json()["meta_info"]
    return meta


def test_tenants_see_what_is_theirs_and_operators_all(client: httpx.Client) -> None:
    for tenant, times in (("red", 2), ("blue", 1), (None, 3)):
        for number in range(times):
            ask(client, tenant, f"Number {number}")
    for tenant, times in (("red", 2), ("blue", 1)):
        known = agents(client, **{"x-hive-tenant": tenant})
        assert known.keys() == {"sec.planner"}
        assert (known["sec.planner"]["tenant"], known["sec.planner"]["requests"]) == (tenant, times)
    assert agents(client)["sec.planner"]["requests"] == 3
    everybody = client.get("/hive/agents", headers=ADMIN).json()["agents"]
    found = {agent["tenant"]: agent["requests"] for agent in everybody if agent["name"] == "sec.planner"}
    assert found == {"red": 2, "blue": 1, None: 3}

    stats = client.get("/hive/stats", headers={**USER, "x-hive-tenant": "red"}).json()
    assert stats.keys() == {"version", "tenant", "agents", "sharing", "sessions"}
    assert stats["sessions"] == {"active": 1}
    assert client.get("/hive/stats", headers=ADMIN).json()["logits_cache"]["nodes"] > 0


def test_nobody_ends_the_session_of_another_tenant(client: httpx.Client) -> None:
    ask(client, "green", "Hi")
    for headers in ({"x-hive-tenant": "yellow"}, {}):
        assert client.delete("/hive/sessions/sec.run.green", headers={**USER, **headers}).status_code == 404
    other = client.delete("/hive/sessions/sec.run", headers={**USER, "x-hive-tenant": "yellow"})
    assert other.status_code == 404
    own = client.delete("/hive/sessions/sec.run", headers={**USER, "x-hive-tenant": "green"})
    assert own.json() == {"session": "sec.run", "requests": 1}


def test_agents_are_registered_for_a_tenant(client: httpx.Client) -> None:
    body = {"name": "sec.known", "description": "of red", "session": "sec.red"}
    headers = {**USER, "x-hive-tenant": "red"}
    assert client.post("/hive/agents", json=body, headers=headers).status_code == 200
    assert agents(client, **{"x-hive-tenant": "red"})["sec.known"]["description"] == "of red"
    assert "sec.known" not in agents(client)
    assert client.delete("/hive/sessions/sec.red", headers=headers).status_code == 200


def test_no_tenant_learns_what_another_has_asked(client: httpx.Client) -> None:
    secret = (
        "The code of the vault is four seven one one, and nobody else may ever hear of it, for it is ours. "
        * 3
    )
    assert ask(client, "red", secret)["cached_tokens"] == 0
    assert ask(client, "red", secret + "So")["cached_tokens"] > 20
    for tenant, fields in (
        ("blue", {}),
        (None, {}),
        # What the server itself calls the tenant.
        (None, {"extra_key": "3:red0:"}),
        (None, {"extra_key": "red"}),
        ("blue", {"extra_key": "3:red0:"}),
    ):
        meta = ask(client, tenant, secret, **fields)
        assert (meta["cached_tokens"], meta["hive"]["tokens_replayed"]) == (0, 0), (tenant, fields)


def test_what_tells_of_all_tenants_is_the_operators(client: httpx.Client) -> None:
    assert client.get("/hive/events", headers=USER).status_code == 403
    with client.stream("GET", "/hive/events", headers=ADMIN) as events:
        assert events.status_code == 200
    assert client.get("/metrics", headers={"x-hive-tenant": "red"}).status_code == 403


def test_registrations_are_small(client: httpx.Client) -> None:
    answer = client.post("/hive/agents", content=b" " * 140_000, headers=USER)
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
