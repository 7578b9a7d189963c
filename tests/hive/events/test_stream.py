"""The answer that streams events, as a server drives it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hive.server.events.event import AnyEvent, Requests
from hive.server.events.hub import EventHub, TooManyClients
from hive.server.events.stream import EventStream


@pytest.fixture
def hub() -> EventHub:
    async def poll() -> list[list[AnyEvent]]:
        return []

    return EventHub(poll, max_clients=1)


class Server:
    """One exchange: what was sent, and a client that goes when it is told."""

    def __init__(self, stuck: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.stuck = stuck

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.stuck and message["type"] == "http.response.body":
            await asyncio.Event().wait()
        self.sent.append(message)


async def test_a_client_that_goes_gives_its_place_back(hub: EventHub) -> None:
    server = Server()
    answering = asyncio.create_task(EventStream(hub)({}, server.receive, server.send))
    await asyncio.sleep(0.05)
    assert hub.clients == 1
    with pytest.raises(TooManyClients):
        EventStream(hub)
    server.gone.set()
    await asyncio.wait_for(answering, 5)
    assert hub.clients == 0
    headers = dict(server.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers


@pytest.mark.parametrize("ticks", range(6))
async def test_a_client_that_goes_as_a_snapshot_comes_frees_its_place(hub: EventHub, ticks: int) -> None:
    # On Python 3.11 asyncio.wait_for swallows a cancellation that meets the end of its wait.
    server = Server()
    answering = asyncio.create_task(EventStream(hub)({}, server.receive, server.send))
    await asyncio.sleep(0.05)
    server.gone.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    hub._take([[Requests(running=1)]])
    _, pending = await asyncio.wait({answering}, timeout=5)
    assert not pending
    assert hub.clients == 0


async def test_a_client_that_does_not_read_is_dropped(hub: EventHub) -> None:
    server = Server(stuck=True)
    await asyncio.wait_for(EventStream(hub, send_s=0.05)({}, server.receive, server.send), 5)
    assert hub.clients == 0
    assert len(server.sent) == 1


async def test_a_cancelled_answer_gives_its_place_back(hub: EventHub) -> None:
    server = Server()
    answering = asyncio.create_task(EventStream(hub)({}, server.receive, server.send))
    await asyncio.sleep(0.05)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert hub.clients == 0
