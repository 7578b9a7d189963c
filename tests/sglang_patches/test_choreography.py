"""Messages of a server without an engine: what is refused before anything is computed, and what becomes of KV."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from sglang.srt.managers.io_struct import DumperControlReqInput

from hive.kv_segments.messages import Message
from sglang_patches.choreography import Choreography


class Server:
    """A tokenizer manager that notes what its schedulers are told."""

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(context_len=64)
        self.tokenizer = None
        self.told: list[tuple[str, dict[str, Any]]] = []

    async def dumper_control(self, message: DumperControlReqInput) -> list[Any]:
        self.told.append((message.method, message.body))
        return []


def made(server: Server, *messages: tuple[str | None, str, str]) -> Choreography:
    """A choreography with messages: tenant, session and id of each."""
    choreography = Choreography(server)
    for tenant, session, id in messages:
        choreography.book.add(Message(id, tenant, session, array("q", [1, 2]), 0))
    return choreography


async def test_the_schedulers_drop_what_is_deleted() -> None:
    server = Server()
    choreography = made(server, ("t", "s", "one"), (None, "s", "one"))
    deleted = await choreography.delete("t", "one")
    assert deleted is not None
    assert server.told == [("hive:drop_messages", {"tenant": "t", "messages": ["one"]})]
    assert await choreography.delete("t", "one") is None
    assert len(server.told) == 1


async def test_the_schedulers_drop_what_ends_with_its_session() -> None:
    server = Server()
    choreography = made(
        server, ("t", "s", "one"), ("t", "s", "two"), ("t", "other", "three"), (None, "s", "four")
    )
    for _ in range(2):
        await choreography.end_session("t", "s")
    assert server.told == [("hive:drop_messages", {"tenant": "t", "messages": ["one", "two"]})]
    assert await choreography.delete("t", "three") is not None
