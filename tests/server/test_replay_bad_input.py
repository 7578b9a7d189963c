"""Policies and flags that make no sense: the answer names what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from hive.launch_server import split_args

TAGS: list[dict[str, Any]] = [
    {"replay": "greedy"},
    {"replay": 1},
    {"hotspot_threshold": 1.5},
    {"hotspot_threshold": -0.1},
    {"hotspot_threshold": "0.5"},
    {"hotspot_threshold": True},
    {"hotspot_top_k": 0},
    {"hotspot_top_k": 2.5},
    {"hotspot_top_k": 2**40},
    {"hotspot_decay": 0},
    {"hotspot_decay": [1]},
    {"sample": -1},
]
HEADERS = {
    "x-hive-replay": "greedy",
    "x-hive-hotspot-threshold": "1.5",
    "x-hive-hotspot-top-k": "0",
    "x-hive-hotspot-decay": "0",
    "x-hive-sample": "first",
}
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "Hi"},
    "/v1/completions": {"model": "any", "prompt": "Hi"},
    "/v1/chat/completions": {"model": "any", "messages": [{"role": "user", "content": "Hi"}]},
}


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        yield client


def refused(client: httpx.Client, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
    """What the answer blames."""
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] in error["message"]
    return str(error["param"])


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("tag", TAGS, ids=str)
def test_a_bad_policy_in_a_body_is_refused_by_name(
    client: httpx.Client, path: str, tag: dict[str, Any]
) -> None:
    custom = {"custom_params": {"hive": tag}}
    body = {**BODIES[path], **({"sampling_params": custom} if path == "/generate" else custom)}
    assert refused(client, path, body, {}).endswith(f"custom_params.hive.{next(iter(tag))}")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("header", HEADERS)
def test_a_bad_policy_in_a_header_is_refused_by_name(client: httpx.Client, path: str, header: str) -> None:
    assert refused(client, path, BODIES[path], {header: HEADERS[header]}) == header


def test_a_policy_in_headers_is_used(client: httpx.Client) -> None:
    headers = {"x-hive-replay": "hotspot", "x-hive-hotspot-threshold": "0.5", "x-hive-hotspot-decay": "10"}
    body = {**BODIES["/generate"], "sampling_params": {"max_new_tokens": 2}}
    before = client.get("/hive/stats").json()["logits_cache"]["policies"].get("hotspot", 0)
    done = client.post("/generate", json=body, headers=headers).json()["meta_info"]["hive"]
    assert (done["replay"], done["hotspot_threshold"], done["hotspot_decay"]) == ("hotspot", 0.5, 10.0)
    assert client.get("/hive/stats").json()["logits_cache"]["policies"]["hotspot"] == before + 1


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--hive-logits-cache-bytes", "-1"),
        ("--hive-logits-cache-bytes", "0"),
        ("--hive-logits-cache-bytes", "1X"),
        ("--hive-logits-cache-form", "tail"),
        ("--hive-logits-cache-head", "0"),
        ("--hive-logits-cache-head", "-7"),
        ("--hive-logits-cache-head", "many"),
    ],
)
@pytest.mark.parametrize("joined", [False, True])
def test_a_bad_flag_of_the_cache_ends_the_start(
    flag: str, value: str, joined: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        split_args([f"{flag}={value}"] if joined else [flag, value])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert flag in said
    assert "Traceback" not in said
