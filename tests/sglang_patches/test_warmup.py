"""The warm-up: its requests, and that a failure does not stop the server.

On a real server it is in ``tests/server/test_decode_rows``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from hive.launch_server import with_warm_up
from hive.server.request_checks.batches import WARM_UP_RID
from sglang_patches.http.warmup import LONG_PROMPT, warm_up, warm_up_requests


def manager(*, grammars: bool = True, generation: bool = True, failing: str = "") -> Any:
    """A tokenizer manager that records requests, and rejects one kind."""
    asked: list[Any] = []

    async def generate_request(request: Any, _: None) -> AsyncIterator[dict[str, Any]]:
        asked.append(request)
        if failing in request.sampling_params:
            raise ValueError(f"{failing} is not for this model")
        yield {}

    args = SimpleNamespace(
        lora_paths=[SimpleNamespace(lora_name="proposer")], grammar_backend="xgrammar" if grammars else "none"
    )
    return SimpleNamespace(
        generate_request=generate_request,
        server_args=args,
        tokenizer=object(),
        is_generation=generation,
        context_len=200,
        asked=asked,
    )


def test_every_kind_is_asked_for_once_under_ids_that_no_client_may_use() -> None:
    server = manager()
    asyncio.run(warm_up("null", server))
    asked = server.asked
    assert len({request.rid for request in asked}) == len(asked)
    assert all(request.rid.startswith(WARM_UP_RID) for request in asked)
    params = [request.sampling_params for request in asked]
    for name in ("top_p", "top_k", "min_p", "frequency_penalty", "logit_bias", "regex", "json_schema"):
        assert sum(name in each for each in params) == 1
    assert [request.lora_path for request in asked if request.lora_path] == ["proposer"]
    # No prompt is longer than the model takes.
    assert max(len(request.input_ids) for request in asked) == 100 < LONG_PROMPT


def test_without_grammars_none_is_asked_for() -> None:
    server = manager(grammars=False)
    asyncio.run(warm_up("null", server))
    assert not any("regex" in request.sampling_params for request in server.asked)
    assert len(server.asked) == len(list(warm_up_requests(server.server_args, grammars=False)))


def test_a_failing_warm_up_request_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = manager(failing="logit_bias")
    with caplog.at_level("INFO"):
        asyncio.run(warm_up("null", server))
    assert any(
        "warm-up of biases failed: logit_bias is not for this model" in each for each in caplog.messages
    )
    assert caplog.messages[-1].startswith("Hive: warm-up finished in")
    assert any("warm-up 1 of" in each for each in caplog.messages)


@pytest.mark.parametrize(("mode", "generation"), [("prefill", True), ("null", False)])
def test_servers_that_generate_nothing_by_themselves_are_left_alone(mode: str, generation: bool) -> None:
    server = manager(generation=generation)
    asyncio.run(warm_up(mode, server))
    assert server.asked == []


def test_flags_of_the_user_count() -> None:
    assert with_warm_up(["--tp", "2"]) == ["--tp", "2", "--warmups", "hive"]
    for own in (["--warmups=voice_chat"], ["--warmups", "voice_chat"], ["--skip-server-warmup"]):
        assert with_warm_up(own) == own
