"""Snapshots through a hub to its clients."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hive.server.events.event import AgentLine, Agents, AnyEvent, Requests
from hive.server.events.hub import EventHub, TooManyClients


class Schedulers:
    """What the ranks would answer; each poll gives all of it."""

    def __init__(self) -> None:
        self.ranks: list[list[AnyEvent]] = []
        self.polls = 0
        self.asked = asyncio.Semaphore(0)
        """One for each poll that has begun."""
        self.error: Exception | None = None
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self) -> list[list[AnyEvent]]:
        self.polls += 1
        self.asked.release()
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        return self.ranks


@pytest.fixture
def schedulers() -> Schedulers:
    return Schedulers()


@pytest.fixture
async def hub(schedulers: Schedulers) -> AsyncIterator[EventHub]:
    made = EventHub(schedulers, interval_s=0.001, max_clients=2)
    yield made
    while made.clients:
        await made.leave()


def events_of(chunk: bytes) -> dict[str, Any]:
    frames = [frame.split("\n") for frame in chunk.decode().split("\n\n") if frame.startswith("event: ")]
    return {frame[0].removeprefix("event: "): json.loads(frame[1].removeprefix("data: ")) for frame in frames}


async def news(stream: AsyncIterator[bytes]) -> dict[str, Any]:
    """The next chunk that holds events."""
    async with asyncio.timeout(10):
        async for chunk in stream:
            if found := events_of(chunk):
                return found
    raise AssertionError("the stream has ended")


async def test_schedulers_are_polled_only_while_there_are_clients(
    schedulers: Schedulers, hub: EventHub
) -> None:
    schedulers.ranks = [[Requests(running=3)]]
    await asyncio.sleep(0.02)
    assert schedulers.polls == 0
    assert (await news(hub.join()))["requests"]["running"] == 3
    await hub.leave()
    polls = schedulers.polls
    await asyncio.sleep(0.02)
    assert schedulers.polls == polls


async def test_clients_get_what_changed_and_late_ones_get_all(schedulers: Schedulers, hub: EventHub) -> None:
    agents = Agents([AgentLine("a", requests=1)])
    schedulers.ranks = [[agents, Requests(running=1)]]
    first = hub.join()
    assert (await news(first)).keys() == {"agents", "requests"}
    schedulers.ranks = [[agents, Requests(running=2)]]
    assert (await news(first)) == {
        "requests": {"event": "requests", "running": 2, "queued": 0, "replaying": 0, "waiting": 0}
    }
    late = await news(hub.join())
    assert late["agents"]["agents"][0]["requests"] == 1
    assert late["requests"]["running"] == 2


async def test_a_slow_client_skips_snapshots_and_nothing_is_buffered(
    schedulers: Schedulers, hub: EventHub
) -> None:
    schedulers.ranks = [[Requests(running=0)]]
    slow, fast = hub.join(), hub.join()
    assert (await news(slow))["requests"]["running"] == 0
    assert (await news(fast))["requests"]["running"] == 0
    for number in range(1, 101):
        schedulers.ranks = [[Requests(running=number)]]
        assert (await news(fast))["requests"]["running"] == number
    chunk = await anext(slow)
    assert chunk.count(b"event: ") == 1
    assert events_of(chunk)["requests"]["running"] == 100


async def test_clients_are_bounded_and_a_place_is_free_again(hub: EventHub) -> None:
    hub.join()
    hub.join()
    with pytest.raises(TooManyClients, match="the maximum of 2 clients is reached"):
        hub.join()
    await hub.leave()
    hub.join()


async def test_streams_end_when_the_server_stops(schedulers: Schedulers) -> None:
    stopping = False
    hub = EventHub(schedulers, stopping=lambda: stopping)
    stream = hub.join()
    assert (await anext(stream)).startswith(b"retry: ")
    stopping = True
    async with asyncio.timeout(5):
        assert [chunk async for chunk in stream] == []
    await hub.leave()


async def test_events_of_ranks_are_added_up(schedulers: Schedulers, hub: EventHub) -> None:
    schedulers.ranks = [[Requests(running=2)], [Requests(running=3)]]
    assert (await news(hub.join()))["requests"]["running"] == 5


async def test_a_failed_poll_ends_neither_the_stream_nor_the_polling(
    schedulers: Schedulers, hub: EventHub, caplog: pytest.LogCaptureFixture
) -> None:
    schedulers.error = RuntimeError("no answer")
    stream = hub.join()
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(10):
            await schedulers.asked.acquire()
            await schedulers.asked.acquire()
    assert "could not be asked for live events" in caplog.text
    schedulers.error, schedulers.ranks = None, [[Requests(running=1)]]
    assert (await news(stream))["requests"]["running"] == 1


async def test_a_poll_is_never_cancelled(schedulers: Schedulers, hub: EventHub) -> None:
    # The control channel would take its late answer for that of the next message.
    schedulers.hold.clear()
    answered = asyncio.Event()
    poll = hub._poll

    async def watched() -> Any:
        ranks = await poll()
        answered.set()
        return ranks

    hub._poll = watched
    hub.join()
    async with asyncio.timeout(10):
        await schedulers.asked.acquire()
    await hub.leave()
    schedulers.hold.set()
    async with asyncio.timeout(10):
        await answered.wait()


async def test_schedulers_are_polled_once_in_an_interval(schedulers: Schedulers) -> None:
    hub = EventHub(schedulers, interval_s=60.0)
    for _ in range(2):
        hub.join()
    async with asyncio.timeout(10):
        await schedulers.asked.acquire()
    await asyncio.sleep(0.05)
    assert schedulers.polls == 1, "one poll serves all clients, and the next one waits"
    await hub.leave()
    await hub.leave()
