"""Events from a publisher through a hub to clients, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

zmq = pytest.importorskip("zmq", reason="needs the server extra: uv pip install 'hive[server]'")

from hive.server.events.event import TOPIC, AgentLine, Agents, Requests  # noqa: E402
from hive.server.events.hub import EventHub, TooManyClients  # noqa: E402
from hive.server.events.publisher import HIGH_WATER, EventPublisher  # noqa: E402


@pytest.fixture
def endpoint() -> Iterator[str]:
    # pytest's own folders can be too deep for a socket's path.
    with tempfile.TemporaryDirectory() as folder:
        yield f"ipc://{folder}/events"


@pytest.fixture
def publisher(endpoint: str) -> Iterator[EventPublisher]:
    made = EventPublisher(endpoint, interval_s=0.0)
    yield made
    made.close()


@pytest.fixture
async def hub(endpoint: str) -> AsyncIterator[EventHub]:
    made = EventHub([endpoint], max_clients=2)
    yield made
    while made.clients:
        await made.leave()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


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


async def test_nothing_is_due_while_nobody_listens(publisher: EventPublisher, hub: EventHub) -> None:
    assert not publisher.due()
    stream = hub.join()
    await until(publisher.due)
    publisher.publish([Requests(running=3)])
    assert (await news(stream))["requests"]["running"] == 3
    await hub.leave()
    await until(lambda: not publisher.due())


async def test_a_picture_is_due_once_in_an_interval(endpoint: str, hub: EventHub) -> None:
    now = 100.0
    publisher = EventPublisher(endpoint, interval_s=0.5, clock=lambda: now)
    hub.join()

    def listened() -> bool:
        nonlocal now
        now += 0.5
        return publisher.due()

    await until(listened)
    assert not publisher.due()
    now += 0.4
    assert not publisher.due()
    now += 0.2
    assert publisher.due()
    publisher.close()


async def test_clients_get_what_changed_and_late_ones_get_all(
    publisher: EventPublisher, hub: EventHub
) -> None:
    first = hub.join()
    await until(publisher.due)
    agents = Agents([AgentLine("a", requests=1)])
    publisher.publish([agents, Requests(running=1)])
    assert (await news(first)).keys() == {"agents", "requests"}
    publisher.publish([agents, Requests(running=2)])
    assert (await news(first)) == {
        "requests": {"event": "requests", "running": 2, "queued": 0, "replaying": 0, "waiting": 0}
    }
    late = await news(hub.join())
    assert late["agents"]["agents"][0]["requests"] == 1
    assert late["requests"]["running"] == 2


async def test_a_slow_client_skips_pictures_and_nothing_piles_up(
    publisher: EventPublisher, hub: EventHub
) -> None:
    slow, fast = hub.join(), hub.join()
    await until(publisher.due)
    publisher.publish([Requests(running=0)])
    assert (await news(slow))["requests"]["running"] == 0
    for number in range(1, 301):
        publisher.publish([Requests(running=number)])
        seen = 0
        while seen < number:
            seen = (await news(fast))["requests"]["running"]
    chunk = await anext(slow)
    assert chunk.count(b"event: ") == 1
    assert events_of(chunk)["requests"]["running"] == 300
    assert hub.missed == 0


async def test_places_are_bounded_and_free_again(hub: EventHub) -> None:
    hub.join()
    hub.join()
    with pytest.raises(TooManyClients, match="2 clients listen already"):
        hub.join()
    await hub.leave()
    hub.join()


async def test_streams_end_when_the_server_stops(endpoint: str) -> None:
    stopping = False
    hub = EventHub([endpoint], stopping=lambda: stopping)
    stream = hub.join()
    assert (await anext(stream)).startswith(b"retry: ")
    stopping = True
    async with asyncio.timeout(5):
        assert [chunk async for chunk in stream] == []
    await hub.leave()


async def test_events_of_ranks_are_one_picture(endpoint: str) -> None:
    publishers = [EventPublisher(f"{endpoint}{rank}", rank, 0.0) for rank in (0, 1)]
    hub = EventHub([f"{endpoint}{rank}" for rank in (0, 1)])
    stream = hub.join()
    for number, publisher in enumerate(publishers, 2):
        await until(publisher.due)
        publisher.publish([Requests(running=number)])
    assert (await news(stream))["requests"]["running"] == 5, "the first picture is of both"
    await hub.leave()
    for publisher in publishers:
        publisher.close()


async def test_a_rank_that_says_nothing_is_not_waited_for(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hive.server.events.hub._PATIENCE_S", 0.05)
    publisher = EventPublisher(f"{endpoint}0", 0, 0.0)
    hub = EventHub([f"{endpoint}{rank}" for rank in (0, 1)])
    stream = hub.join()
    await until(publisher.due)
    await asyncio.sleep(0.1)
    publisher.publish([Requests(running=2)])
    assert (await news(stream))["requests"]["running"] == 2
    await hub.leave()
    publisher.close()


def test_a_stuck_subscriber_costs_no_time_and_learns_what_it_missed(
    endpoint: str, publisher: EventPublisher
) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as stuck:
        stuck.set_hwm(1)
        stuck.setsockopt(zmq.LINGER, 0)
        stuck.subscribe(TOPIC)
        stuck.connect(endpoint)
        deadline = time.monotonic() + 10
        while not publisher.due():
            assert time.monotonic() < deadline
        # More than any buffer on the way holds.
        large = Agents([AgentLine("a" * 128, description="d" * 1024) for _ in range(64)])
        count = 40 * HIGH_WATER
        slowest = 0.0
        for _ in range(count):
            started = time.perf_counter()
            publisher.publish([large])
            slowest = max(slowest, time.perf_counter() - started)
        assert slowest < 0.5
        numbers = []
        while stuck.poll(500):
            numbers.append(int.from_bytes(stuck.recv_multipart()[1], "big"))
        assert numbers[0] == 0
        assert numbers == sorted(numbers)
        assert len(numbers) < count
        # What comes next tells how many are missing.
        publisher.publish([large])
        assert stuck.poll(5000)
        assert int.from_bytes(stuck.recv_multipart()[1], "big") == count


async def test_gaps_are_counted(publisher: EventPublisher, hub: EventHub) -> None:
    stream = hub.join()
    await until(publisher.due)
    publisher.publish([Requests(running=1)])
    await news(stream)
    publisher.sequence += 7
    publisher.publish([Requests(running=2)])
    await news(stream)
    assert hub.missed == 7


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot publish events on {address}: Address already in use"):
            EventPublisher(address)


def test_the_socket_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        EventPublisher(f"ipc://{tmp_path}/nowhere/events")
