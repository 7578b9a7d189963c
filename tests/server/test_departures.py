"""Requests that a real server refuses or gives up, and agents that are over: nothing of them stays behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from hive.server.server_process import ServerProcess, slowdown

pytestmark = pytest.mark.server

ROUND, ROUNDS = 4, 2
"""Requests in a round, and rounds in the window."""
ASKED_AT_ONCE = 24


class Client:
    """A server that runs one request at a time, lets two wait and tells three agents apart."""

    def __init__(self, server: ServerProcess) -> None:
        self.http = httpx.Client(base_url=server.url, timeout=120, trust_env=False)

    def ask(self, agent: str | None, prompt: list[int], tokens: int = 2, **options: Any) -> httpx.Response:
        params = {"max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": params, **options}
        if agent is not None:
            params["custom_params"] = {"hive": {"agent": agent, "replay": "off"}}  # type: ignore[assignment]
        return self.http.post("/generate", json=body)

    def agents(self) -> dict[str, dict[str, Any]]:
        return {agent["name"]: agent for agent in self.http.get("/hive/agents").json()["agents"]}

    def settle(self) -> None:
        """Wait until nothing runs: the engine then flushes its cache."""
        end = time.monotonic() + 60 * slowdown()
        while (answer := self.http.post("/flush_cache")).status_code != 200:
            assert time.monotonic() < end, answer.text
            time.sleep(0.1)


@pytest.fixture(scope="module")
def client(launch_server: Callable[..., ServerProcess]) -> Iterator[Client]:
    """Of a server of its own: it refuses what queues, runs one request at a time, and has room for three agents."""
    server = launch_server(
        *("--max-running-requests", "1", "--max-queued-requests", "2", "--chunked-prefill-size", "64"),
        *("--hive-round-requests", str(ROUND), "--hive-window-rounds", str(ROUNDS)),
        *("--hive-collaborative-weight", "0", "--hive-max-agents", "3"),
    )
    client = Client(server)
    yield client
    client.http.close()
    server.stop()


def test_what_was_refused_or_left_early_runs_no_more(client: Client) -> None:
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        answers = pool.map(
            lambda number: client.ask("spam", [number + 5] * 20, tokens=24).status_code, range(ASKED_AT_ONCE)
        )
        assert Counter(answers)[200] < ASKED_AT_ONCE / 2
        for number in range(3):
            # Some 30 chunks, of which a few are computed.
            asked = pool.submit(client.ask, "hasty", [number + 5, *range(100, 2000)], rid=f"hasty-{number}")
            time.sleep(0.3)
            client.http.post("/abort_request", json={"rid": f"hasty-{number}"})
            asked.result()
    client.settle()
    agents = client.agents()
    assert agents["spam"]["requests"] == ASKED_AT_ONCE
    assert (agents["hasty"]["requests"], agents["hasty"]["tokens_generated"]) == (3, 0)
    for _ in range(ROUND * ROUNDS):
        for agent in ("spam", "hasty", "honest"):
            assert client.ask(agent, [5, 6, 7]).status_code == 200
    found = client.agents()
    concurrency = {name: found[name]["contribution"]["concurrency"] for name in ("spam", "hasty", "honest")}
    assert concurrency == {"spam": 1.0, "hasty": 1.0, "honest": 1.0}


def test_agents_that_are_over_make_room_for_new_ones(client: Client) -> None:
    before = client.agents()
    client.settle()  # the flush leaves nobody's KV on the device
    for _ in range(ROUND * (ROUNDS + 2)):
        assert client.ask(None, [5, 6, 7]).status_code == 200
    assert client.ask("late", [8, 9]).status_code == 200
    after = client.agents()
    assert after.keys() == {"hasty", "honest", "late", "other"}, "spam was seen least recently"
    assert after["other"]["requests"] == before["spam"]["requests"] + ROUND * (ROUNDS + 2)
    assert after["other"]["stored_tokens"] >= before["spam"]["stored_tokens"] > 0
