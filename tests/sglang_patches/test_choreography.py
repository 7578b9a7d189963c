"""Messages of a server without an engine: what is refused before anything is computed, and what becomes of KV."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from fastapi import HTTPException
from sglang.srt.managers.io_struct import DumperControlReqInput

from hive.server.kv_segments.messages import Message
from hive.server.request_tag import RequestError
from sglang_patches.http.choreography import Choreography


class Server:
    """A tokenizer manager that records control messages, and generates one token per request."""

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(context_len=1024)
        self.tokenizer = None
        self.lora_ref_cache = {"loaded": None}
        self.asked: list[str | None] = []
        self.ends: dict[str, Any] = {"type": "length"}
        """Why answers end."""
        self.told: list[tuple[str, dict[str, Any]]] = []

    async def dumper_control(self, message: DumperControlReqInput) -> list[Any]:
        self.told.append((message.method, message.body))
        return []

    async def generate_request(self, obj: Any, _request: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(obj.lora_path)
        yield {"output_ids": [7], "meta_info": {"finish_reason": self.ends, "hive": {}}}


def made(server: Server, *messages: tuple[str | None, str, str]) -> Choreography:
    """A choreography with messages: tenant, session and id of each."""
    choreography = Choreography(server)
    for tenant, session, id in messages:
        choreography.messages.add(Message(id, tenant, session, array("q", [1, 2]), 0))
    return choreography


async def test_schedulers_drop_deleted_messages() -> None:
    server = Server()
    choreography = made(server, ("t", "s", "one"), (None, "s", "one"))
    deleted = await choreography.delete("t", "one")
    assert deleted is not None
    assert server.told == [("hive:drop_messages", {"tenant": "t", "messages": ["one"]})]
    assert await choreography.delete("t", "one") is None
    assert len(server.told) == 1


async def test_schedulers_drop_the_messages_of_an_ended_session() -> None:
    server = Server()
    choreography = made(
        server, ("t", "s", "one"), ("t", "s", "two"), ("t", "other", "three"), (None, "s", "four")
    )
    for _ in range(2):
        await choreography.end_session("t", "s")
    assert server.told == [("hive:drop_messages", {"tenant": "t", "messages": ["one", "two"]})]
    assert await choreography.delete("t", "three") is not None


@pytest.mark.parametrize("decodes", [False, True])
async def test_an_adapter_that_was_never_loaded_is_refused_before_any_call_is_made(decodes: bool) -> None:
    server = Server()
    choreography = Choreography(server)
    own = "header_tokens" if decodes else "tokens"
    good, bad = {own: [1], "lora_path": "loaded"}, {own: [1], "lora_path": "nobody"}
    request: Any = None
    for body, field in ((bad, "lora_path"), ({"calls": [good, bad]}, "calls[1].lora_path")):
        with pytest.raises(RequestError, match=r"must be the name of an adapter.* got 'nobody'") as refused:
            await choreography.run(body, request, decodes=decodes)
        assert refused.value.field == field
    with pytest.raises(RequestError, match="lora_path"):
        choreography.stream({**bad, "header_tokens": [1]}, request)
    assert server.asked == []
    for adapter in ("loaded", None):
        await choreography.run({own: [1], "lora_path": adapter}, request, decodes=decodes)
    assert server.asked == ["loaded", None]


@pytest.mark.parametrize("decodes", [False, True])
async def test_a_call_that_does_not_fit_is_unavailable_and_creates_no_message(decodes: bool) -> None:
    server = Server()
    choreography = Choreography(server)
    server.ends = {"type": "abort", "status_code": HTTPStatus.SERVICE_UNAVAILABLE, "message": "no room"}
    body = {"header_tokens" if decodes else "tokens": [1], "id": "one"}
    request: Any = None
    with pytest.raises(HTTPException) as caught:
        await choreography.run(body, request, decodes=decodes)
    assert (caught.value.status_code, caught.value.detail) == (503, "no room")
    assert choreography.messages.get(None, "one") is None
    server.ends = {"type": "length"}
    assert (await choreography.run(body, request, decodes=decodes))["id"] == "one"
