"""Prefills of few tokens as decode rows, in one step with the running batch: what they generate is what extends do.

Requests that want log-probabilities go as extends: so one server gives both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from hive.server.roles import ROLES
from hive.server.server_process import ServerProcess
from tests.repetitions import repetitions
from tests.server.replay_client import Answer, Ask

ADAPTERS = (None, *ROLES)
CONTEXT = list(range(1000, 1120))
STEPS = r"[0-9 +*=-]{6,12}\."


class Client:
    """Asks one server, and what it has done."""

    log: Path

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=300)

    def ask(self, ask: Ask, *, extend: bool) -> Answer:
        body = ask.body("off") | ({"return_logprob": True} if extend else {})
        response = self.http.post("/generate", json=body)
        response.raise_for_status()
        return Answer(response.json())

    def mixed(self) -> int:
        return int(self.http.get("/hive/stats").json()["scheduler"]["mixed"])

    def check(self) -> None:
        """The books of the caches are right once nothing runs."""
        while not (found := self.http.post("/hive/check").json())["idle"]:
            time.sleep(0.1)
        assert found["problems"] == []


@pytest.fixture(scope="module")
def client(launch_server: Callable[..., ServerProcess]) -> Iterator[Client]:
    """Of a server of its own: rows join decode batches and it is warmed up, both as on a GPU."""
    flags = ("--hive-decode-rows", "on", "--hive-roles", "--dtype", "float32", "--warmups", "hive")
    server = launch_server(*flags)
    client = Client(server.url)
    client.log = server.log_path
    yield client
    client.http.close()
    server.stop()


def asks() -> list[Ask]:
    """Requests of all kinds, most of which begin with what others have computed."""
    found = []
    for number in range(12):
        new = repetitions(2, 4) + number % repetitions(5, 7)
        params: dict[str, Any] = {"max_new_tokens": new, "temperature": number % 3 * 0.5}
        params["sampling_seed"] = number
        if number % 4 == 1:
            params["frequency_penalty"] = 0.7
        if number % 4 == 2:
            params["regex"] = STEPS
        if number % 4 == 3:
            params |= {"top_p": 0.9, "top_k": 30}
        adapter = ADAPTERS[number % len(ADAPTERS)]
        prompt = CONTEXT + list(range(2000 + number, 2000 + number + number % 12))
        found.append(Ask(prompt, params, {"lora_path": adapter} if adapter else {}))
    return found


def test_the_server_is_warm_before_it_listens_and_nobody_is_counted(client: Client) -> None:
    log = client.log.read_text(errors="replace")
    assert "Hive: warm-up of" not in log, "a request of the warm-up failed"
    assert log.index("Hive: warm-up finished") < log.index("Uvicorn running")
    for adapter in ROLES:
        assert f"the adapter {adapter} (" in log
    assert client.http.get("/hive/agents").json()["agents"] == []


def test_rows_generate_what_extends_do(client: Client) -> None:
    """All at once, so that they enter the running batch of others, and before that one by one."""
    wanted = [client.ask(ask, extend=True) for ask in asks()]
    alone = [client.ask(ask, extend=False) for ask in asks()]
    before = client.mixed()
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda ask: client.ask(ask, extend=False), asks()))
    assert [answer.ids for answer in alone] == [answer.ids for answer in wanted]
    assert [answer.ids for answer in together] == [answer.ids for answer in wanted]
    assert client.mixed() > before


def test_a_request_that_is_aborted_in_a_mixed_batch_leaves_the_others(client: Client) -> None:
    wanted = [client.ask(ask, extend=True) for ask in asks()[:6]]
    with ThreadPoolExecutor(8) as pool:
        long = Ask(CONTEXT, {"max_new_tokens": 400, "ignore_eos": True}, {"rid": "given-up"})
        given_up = pool.submit(lambda: client.ask(long, extend=False))
        time.sleep(0.5)
        others = [pool.submit(client.ask, ask, extend=False) for ask in asks()[:6]]
        client.http.post("/abort_request", json={"rid": "given-up"}).raise_for_status()
        assert [other.result().ids for other in others] == [answer.ids for answer in wanted]
        assert given_up.result().finish["type"] == "abort"
    client.check()
