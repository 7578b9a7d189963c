"""Bad requests against real servers: Hive answers each with 400 and goes on; stock SGLang does not survive.

``python -m bench.bad_requests`` shows what stock SGLang does with all of them, one fresh server per death.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bench.bad_requests.__main__ import STOCK_ENVIRONMENT, STOCK_FLAGS, send, serves
from bench.bad_requests.requests import BAD_REQUESTS, VOCAB_SIZE, BadRequest
from hive.server.embedded_model import ensure_embedded_model

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
    assert serves(server.url), "the server did not survive the bad requests"


@pytest.fixture(scope="module")
def model(client: httpx.Client) -> str:
    return str(client.get("/v1/models").json()["data"][0]["id"])


def message_of(answer: httpx.Response) -> str:
    """The message of an error, in Hive's form or in one of SGLang's."""
    body = answer.json()
    return str(body.get("error", body)["message"])


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.name)
def test_a_bad_request_is_answered_with_400_and_the_server_serves_on(
    client: httpx.Client, model: str, bad: BadRequest
) -> None:
    headers = {"content-type": "application/json", **bad.headers}
    answer = client.post(bad.path, content=bad.asking(model), headers=headers)
    assert answer.status_code == 400, answer.text[:500]
    assert bad.blamed in message_of(answer)
    assert client.post("/generate", json={"text": "Hi", "sampling_params": {"max_new_tokens": 1}}).is_success


@pytest.mark.parametrize("path", ["/generate", "/hive/stats", "/v1/models"])
def test_large_headers_are_refused_on_every_route(client: httpx.Client, path: str) -> None:
    answer = client.get(path, headers={"x-padding": "x" * 16384})
    assert answer.status_code == 431
    assert "16384 bytes" in message_of(answer)


@pytest.mark.parametrize(
    ("headers", "blamed"),
    [
        ({"x-hive-agents": "a"}, "x-hive-agents"),
        ({"x-hive-sample": "-1"}, "x-hive-sample"),
        ({"x-hive-agent": "two words"}, "x-hive-agent"),
        ({"x-hive-replay": "sometimes"}, "x-hive-replay"),
    ],
)
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_a_bad_tag_in_headers_is_refused(
    client: httpx.Client, path: str, headers: dict[str, str], blamed: str
) -> None:
    body = {"text": "Hi", "prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}]}
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == blamed


@pytest.mark.parametrize(
    ("tag", "blamed"),
    [
        ({"agent": ""}, "custom_params.hive.agent"),
        ({"sample": "x"}, "custom_params.hive.sample"),
        ({"sampel": 1}, "custom_params.hive.sampel"),
        ("solver", "custom_params.hive"),
    ],
)
def test_a_bad_tag_in_a_body_is_refused(client: httpx.Client, tag: Any, blamed: str) -> None:
    custom = {"hive": tag}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "custom_params": custom, "stream": True}
    for path, body in (
        ("/generate", {"text": "Hi", "sampling_params": {"custom_params": custom}}),
        ("/v1/completions", {"prompt": "Hi", "custom_params": custom}),
        ("/v1/chat/completions", chat),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].endswith(blamed)


def test_a_client_that_goes_away_ends_its_request(client: httpx.Client) -> None:
    body = {"text": "Count:", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}, "stream": True}
    with client.stream("POST", "/generate", json=body) as answer:
        assert answer.status_code == 200
        next(answer.iter_lines())
    small = {"text": "Hi", "sampling_params": {"max_new_tokens": 4}}
    assert client.post("/generate", json=small).is_success
    with pytest.raises(httpx.ReadTimeout):
        client.post("/generate", json={**body, "stream": False}, timeout=2)
    assert client.post("/generate", json=small).is_success


@pytest.mark.long
def test_stock_sglang_dies_of_one_of_them(launch_server: Any) -> None:
    model = str(ensure_embedded_model())
    stock = launch_server(
        *("--model-path", model, *STOCK_FLAGS), module="sglang.launch_server", environment=STOCK_ENVIRONMENT
    )
    assert serves(stock.url)
    killer = next(bad for bad in BAD_REQUESTS if bad.name == f"chat top_logprobs={VOCAB_SIZE + 1}")
    assert send(stock.url, killer) == "connection closed"
    assert not serves(stock.url)
    assert stock.process.wait(60) != 0
