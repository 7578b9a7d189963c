"""One server of several data-parallel ranks: flags pass through, and statistics are those of all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from hive.server.server_process import ServerProcess
from tests.router.traffic import counted, seen

pytestmark = [pytest.mark.server, pytest.mark.long]

REQUESTS = 8


@pytest.fixture(scope="module")
def ranks(launch_server: Callable[..., ServerProcess]) -> Iterator[ServerProcess]:
    """A server of its own: two models behind one door."""
    flags = ("--dp-size", "2", "--enable-metrics", "--max-total-tokens", "8192")
    server = launch_server(*flags, "--tool-call-parser", "qwen25")
    yield server
    server.stop()


def test_statistics_are_those_of_all_ranks(ranks: ServerProcess) -> None:
    with httpx.Client(base_url=ranks.url, timeout=60, trust_env=False) as http:
        for number in range(REQUESTS):
            body = {
                "text": f"Number {number} is",
                "sampling_params": {
                    "max_new_tokens": 4,
                    "ignore_eos": True,
                    "custom_params": {"hive": {"agent": "counter", "session": "ranks"}},
                },
                # Both ranks get half of them.
                "routed_dp_rank": number % 2,
            }
            http.post("/generate", json=body).raise_for_status()
        counts = counted([ranks.url], "counter")
        assert (counts.requests, counts.tokens_generated + counts.tokens_replayed) == (REQUESTS, 4 * REQUESTS)
        assert http.get("/hive/stats").json()["logits_cache"]["lookups"] >= REQUESTS
        metrics = http.get("/metrics").text
        assert http.delete("/hive/sessions/ranks").json() == {"session": "ranks", "requests": REQUESTS}
    totals = re.findall(r'^hive_requests_total\{.*agent="counter".*\} (\S+)$', metrics, re.MULTILINE)
    assert sum(map(float, totals)) == REQUESTS


def test_an_agent_is_registered_with_every_rank(ranks: ServerProcess) -> None:
    answer = httpx.post(f"{ranks.url}/hive/agents", json={"name": "both"}, trust_env=False, timeout=60)
    assert answer.status_code == 200
    assert seen(ranks.url)["both"]["registered"]


def test_hints_reach_the_ranks_that_know_the_session(ranks: ServerProcess) -> None:
    tool = {
        "type": "function",
        "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}},
    }
    call = r'<tool_call>\n\{"name": "ls", "arguments": \{\}\}\n</tool_call>'
    body = {"model": "any", "messages": [{"role": "user", "content": "Hi."}], "tools": [tool], "regex": call}
    with httpx.Client(base_url=ranks.url, timeout=60, trust_env=False) as http:
        chat = http.post("/v1/chat/completions", json=body, headers={"x-session-id": "hinted"})
        assert chat.json()["choices"][0]["finish_reason"] == "tool_calls"
        hints = {"hints": [{"session": name, "retain": 5} for name in ("hinted", "unknown")]}
        assert http.post("/hive/hints", json=hints).json() == {"known": [True, False]}
        assert http.get("/hive/stats").json()["hints"] == {"tool": 1, "retain": 1}
        assert http.post("/hive/check").json() == {"idle": True, "problems": []}
