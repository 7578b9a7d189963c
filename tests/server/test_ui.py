"""``/hive/events`` and ``/hive/ui`` of a real server under traffic."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hive.server.server_process import ServerProcess, slowdown
from hive.server.ui import page
from tests.browser import chromium, needs_chromium
from tests.server.replay_client import KEY

pytestmark = pytest.mark.server

KINDS = {"agents", "scores", "requests", "sessions", "logitscache", "radixcache"}
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def ask(http: httpx.Client, agent: str, session: str, state: str, text: str, tokens: int = 8) -> None:
    tag = {"agent": agent, "session": session, "state": state}
    params = {
        "max_new_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "custom_params": {"hive": tag},
    }
    answer = http.post("/generate", json={"text": text, "sampling_params": params})
    assert answer.status_code == 200, answer.text


def snapshots(http: httpx.Client) -> Iterator[dict[str, Any]]:
    """What is known of every kind, each time something comes."""
    known: dict[str, Any] = {}
    kind = ""
    with http.stream("GET", "/hive/events") as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                known[kind] = json.loads(line.removeprefix("data: "))
            elif not line and known:
                yield dict(known)


def snapshot(http: httpx.Client, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first snapshot that is as wanted."""
    deadline = time.monotonic() + 20 * slowdown()
    for known in snapshots(http):
        if known.keys() >= KINDS and wanted(known):
            return known
        assert time.monotonic() < deadline, known
    raise AssertionError("the stream has ended")


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        yield client


def lines(known: dict[str, Any]) -> dict[str, Any]:
    return {line["name"]: line for line in known["agents"]["agents"]}


def test_events_say_what_the_other_routes_say(http: httpx.Client) -> None:
    for number in range(20):
        ask(http, "ui.writer", "ui-1", f"0.{number % 5}", f"Chapter {number % 4}: once upon a time")
    known = snapshot(http, lambda known: lines(known).get("ui.writer", {}).get("tokens_replayed", 0) > 0)
    for told in http.get("/hive/agents").json()["agents"]:
        if told.pop("tenant") is not None:
            continue  # of other tests
        line = lines(known)[told["name"]]
        history = told.pop("score_history")
        assert {name: line[name] for name in told} == told
        if history:
            assert known["scores"]["history"][told["name"]][-1][1] == pytest.approx(history[-1][1], abs=1e-4)
    stats = http.get("/hive/stats").json()
    cache, told = known["logitscache"], stats["logits_cache"]
    assert {name: cache[name] for name in ("lookups", "hits", "nodes", "bytes")} == {
        name: told[name] for name in ("lookups", "hits", "nodes", "bytes")
    }
    ratio = cache["tokens_replayed"] / (cache["tokens_replayed"] + cache["tokens_generated"])
    assert ratio == pytest.approx(told["hit_ratio"], abs=1e-6)
    assert known["radixcache"]["resident_tokens"] == stats["radix_cache"]["resident_tokens"]
    (session,) = [line for line in known["sessions"]["sessions"] if line["name"] == "ui-1"]
    assert (session["agents"], session["states"], session["requests"], session["running"]) == (
        ["ui.writer"],
        5,
        20,
        0,
    )
    assert session["tokens_generated"] + session["tokens_replayed"] == 160


def test_running_requests_and_the_end_of_a_session_are_seen(
    http: httpx.Client, server: ServerProcess
) -> None:
    def long() -> None:
        with httpx.Client(base_url=server.url, timeout=60 * slowdown(), trust_env=False) as client:
            ask(client, "ui.slow", "ui-2", "0", "Count: one two three", tokens=150)

    asking = threading.Thread(target=long)
    asking.start()

    def seen(known: dict[str, Any]) -> bool:
        """In all three; events of one snapshot come one after the other."""
        sessions = [line["running"] for line in known["sessions"]["sessions"] if line["name"] == "ui-2"]
        agent = lines(known).get("ui.slow", {}).get("running")
        return (known["requests"]["running"], agent, sessions) == (1, 1, [1])

    snapshot(http, seen)
    asking.join()
    assert http.delete("/hive/sessions/ui-2").status_code == 200
    known = snapshot(http, lambda known: known["requests"]["running"] == 0)
    assert "ui-2" not in [line["name"] for line in known["sessions"]["sessions"]]


def test_places_of_clients_that_went_are_free(http: httpx.Client) -> None:
    for _ in range(40):
        with http.stream("GET", "/hive/events") as stream:
            assert stream.status_code == 200
    deadline = time.monotonic() + 10 * slowdown()
    streams = []
    try:
        while len(streams) < 32:
            stream = http.send(http.build_request("GET", "/hive/events"), stream=True)
            if stream.status_code == 200:
                streams.append(stream)
            else:
                stream.close()
                assert time.monotonic() < deadline
        refused = http.get("/hive/events")
        assert refused.status_code == 503
        assert "the maximum of 32 clients is reached" in refused.text
        assert refused.headers["retry-after"] == "10"
    finally:
        for stream in streams:
            stream.close()


def test_the_page_is_open_and_the_events_are_not(exact_server: ServerProcess) -> None:
    with httpx.Client(base_url=exact_server.url, timeout=30, trust_env=False) as client:
        answer = client.get("/hive/ui")
        assert answer.status_code == 200
        assert answer.text == page.content()
        assert "script-src 'sha256-" in answer.headers["content-security-policy"]
        for path in ("/hive/events", "/hive/agents", "/hive/ui/", "/hive/ui/../stats", "/hive/uix"):
            assert client.get(path).status_code == 401, path
        assert client.post("/hive/ui").status_code == 401
        headers = {"authorization": f"Bearer {KEY}"}
        with client.stream("GET", "/hive/events", headers=headers) as stream:
            assert stream.status_code == 200


@needs_chromium
def test_the_page_shows_the_traffic(http: httpx.Client, server: ServerProcess, tmp_path: Path) -> None:
    http.post("/hive/agents", json={"name": "ui.hostile", "description": HOSTILE}).raise_for_status()
    with chromium(tmp_path) as tab:
        tab.view(1300, 900)
        tab.open(f"{server.url}/hive/ui")
        tab.until("$('status').textContent === 'live'")
        for number in range(20):
            agent = ("ui.hostile", "ui.critic")[number % 2]
            ask(http, agent, "ui-3", f"0.{number % 3}", f"{agent} is asked for {number % 4}")
        # The page names agents with their tenants: other tests have some on this server.
        told = {
            f"{agent['tenant']}|{agent['name']}" if agent["tenant"] else agent["name"]: agent
            for agent in http.get("/hive/agents").json()["agents"]
        }
        tab.until(
            f"lines().get('ui.critic')?.requests === {told['ui.critic']['requests']}".replace(
                "lines()", LINES
            )
        )
        shown = dict(tab.run(f"[...{LINES}]"))
        assert shown.keys() == told.keys()
        for name, row in shown.items():
            assert row["requests"] == told[name]["requests"]
            assert row["resident"] == told[name]["resident_tokens"]
            score = told[name]["contribution"]
            assert row["score"] == ("-" if score is None else f"{score['score']:.3f}")
        stats = http.get("/hive/stats").json()
        assert tab.run("$('ratio').textContent") == f"{100 * stats['logits_cache']['hit_ratio']:.1f}%"
        assert HOSTILE in tab.run("document.body.innerText")
        assert tab.run("document.images.length") == 0
        assert [text for text in tab.complaints if "favicon" not in text and "404" not in text] == []
        for name, width, dark in (("desktop", 1300, False), ("dark", 1300, True), ("phone", 360, False)):
            tab.view(width, 900, dark=dark)
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert tab.picture(tmp_path / f"{name}.png").stat().st_size > 20_000


LINES = """new Map([...document.querySelectorAll('#agents tr')].map(row => {
  const number = cls => Number(row.querySelector(cls).textContent.replaceAll(',', ''));
  return [row.querySelector('.name').textContent, {requests: number('.number'), resident: number('.tokens'),
    score: row.querySelector('.score').textContent}]; }))"""
