"""Requests of the bench as a server gets them, and what it makes of the answers."""

from __future__ import annotations

from typing import Any

import pytest

from bench.harness.client import BenchError
from bench.logits_cache.client import Client
from tests.frontend.http_server import Events, Server


def chunk(tokens: int, finish: Any = None) -> dict[str, Any]:
    meta = {
        "completion_tokens": tokens,
        "cached_tokens": 7,
        "finish_reason": finish,
        "hive": {"tokens_replayed": 1},
    }
    return {"text": "", "output_ids": list(range(tokens)), "meta_info": meta}


async def test_a_stream_is_timed_and_its_last_chunk_counts() -> None:
    routes = {"POST /generate": lambda _: (200, Events([chunk(1), chunk(3, {"type": "length"}), "[DONE]"]))}
    async with Server(routes) as server, Client(server.url) as client:
        timing = await client.generate([5, 6], {"max_new_tokens": 3}, "proposer")
        await client.generate([5, 6], {})
    assert 0 < timing.ttft_s <= timing.latency_s
    assert (timing.tokens, timing.replayed, timing.cached, timing.output) == (3, 1, 7, (0, 1, 2))
    first, second = (request.body for request in server.received)
    assert first == {
        "input_ids": [5, 6],
        "sampling_params": {"max_new_tokens": 3},
        "stream": True,
        "lora_path": "proposer",
    }
    assert "lora_path" not in second


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((503, {"error": "busy"}), "HTTP 503: .*busy"),
        ((200, Events([chunk(1), {"error": {"message": "lost"}}])), "the stream broke off: .*lost"),
        ((200, Events([chunk(1)])), "the stream ended before the answer was complete"),
    ],
)
async def test_an_answer_that_is_none_is_told(answer: tuple[int, Any], words: str) -> None:
    async with Server({"POST /generate": lambda _: answer}) as server, Client(server.url) as client:
        with pytest.raises(BenchError, match=words):
            await client.generate([1], {})


async def test_refusals_are_reasons_and_other_errors_end_the_run() -> None:
    answers = iter([(200, {}), (400, {"error": {"message": "no such policy"}}), (500, {})])
    routes = {"POST /generate": lambda _: next(answers), "POST /flush_cache*": lambda _: (400, "busy")}
    async with Server(routes) as server, Client(server.url) as client:
        assert await client.refusal([1], {}) is None
        assert await client.refusal([1], {}) == "no such policy"
        with pytest.raises(BenchError, match="HTTP 500"):
            await client.refusal([1], {})
        with pytest.raises(BenchError, match=r"flush_cache: HTTP 400: .*busy"):
            await client.flush()
        with pytest.raises(BenchError, match="/hive/stats: HTTP 404"):
            await client.get("/hive/stats")
