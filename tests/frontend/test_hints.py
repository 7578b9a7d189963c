"""Hints that runs send by themselves: what a session waits for, which answers nobody continues, and at what cost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from hive_frontend import (
    Beam,
    BestOfN,
    HttpClient,
    Session,
    agent,
    arun,
    fail,
    gather,
    gen,
    score,
    tool,
)
from hive_frontend.client import SessionHint
from hive_frontend.client.http import control_requests
from hive_frontend.search import waits
from hive_frontend.search.waits import ToolTimes

from tests.frontend.http_server import Answer, Received, Server

Routes = dict[str, Any]
HINT: SessionHint = {"session": "s", "kv_priority": 1}


@pytest.fixture(autouse=True)
def fresh_times(monkeypatch: pytest.MonkeyPatch) -> Iterator[ToolTimes]:
    times = ToolTimes()
    monkeypatch.setattr(waits, "tool_times", times)
    return times


def hive(**more: Any) -> Routes:
    """A Hive server that knows no request but plain ones."""
    return {
        "POST /hive/agents": lambda request: (200, {}),
        "GET /hive/agents": lambda request: (200, {}),
        "POST /hive/hints": lambda request: (200, {"known": [True]}),
        "DELETE /hive/sessions/*": lambda request: (200, {}),
        "POST /generate": lambda request: (200, {"text": "yes", "meta_info": {"completion_tokens": 1}}),
        **more,
    }


def hints(server: Server) -> list[dict[str, Any]]:
    return [hint for request in server.asked("/hive/hints") for hint in request.body["hints"]]


async def client_of(server: Server) -> HttpClient:
    """A client that knows that the server is Hive."""
    client = HttpClient(server.url, attempts=1)
    await client.register("a", "s")
    return client


async def settled() -> None:
    await asyncio.sleep(0.05)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def test_a_tool_that_takes_its_time_is_told_and_learnt() -> None:
    @agent
    async def program(seconds: float) -> None:
        await gen("q", raw=True)
        await tool(sleep, seconds)

    async with Server(hive()) as server:
        for _ in range(2):
            await arun(program, 0.2, model=server.url)
        first, second = hints(server)
    assert first == {"session": first["session"], "expects": {"event": "tool"}}, "nobody knew for how long"
    assert second["session"] != first["session"]
    assert second["expects"]["event"] == "tool"
    assert 0.1 < second["expects"]["seconds"] < 0.4


async def test_short_tools_are_not_told() -> None:
    @agent
    async def program() -> None:
        await gen("q", raw=True)
        for _ in range(20):
            await tool(sleep, 0.001)
            await tool(len, "x")

    async with Server(hive()) as server:
        await arun(program, model=server.url)
        assert hints(server) == []


async def test_a_person_is_told() -> None:
    @agent
    async def program() -> None:
        await gen("q", raw=True)
        await tool(sleep, 0.1, waits_for="human")

    async with Server(hive()) as server:
        await arun(program, model=server.url)
        assert [hint["expects"] for hint in hints(server)] == [{"event": "human"}]
    with pytest.raises(ValueError, match='waits_for must be "tool" or "human"'):
        tool(sleep, 1, waits_for="lunch")  # type: ignore[call-overload]


async def test_a_session_that_calls_its_model_waits_for_no_tool() -> None:
    async def slow(request: Received) -> Answer:
        await asyncio.sleep(0.2 if request.body["text"] == "slow" else 0)
        return 200, {"text": "yes", "meta_info": {"completion_tokens": 1}}

    @agent
    async def program() -> None:
        await gen("quick", raw=True)
        await gather(gen("slow", raw=True), tool(sleep, 0.15))

    async with Server(hive(**{"POST /generate": slow})) as server:
        await arun(program, model=server.url)
        assert hints(server) == []

    @agent
    async def longer() -> None:
        await gather(gen("quick", raw=True), tool(sleep, 0.2), tool(sleep, 0.3))

    async with Server(hive()) as server:
        await arun(longer, model=server.url)
        assert {hint["expects"]["event"] for hint in hints(server)} == {"tool"}


async def test_a_native_run_gives_hints_too_and_none_after_its_end() -> None:
    async with Server(hive()) as server:
        client = await client_of(server)
        async with Session(client):
            await gen("q", raw=True)
            await tool(sleep, 0.1)
        await settled()
        assert len(hints(server)) == 1
        last = [request.method for request in server.received][-1]
        assert last == "DELETE"
        await client.aclose()


async def test_answers_that_nobody_continues_are_discarded() -> None:
    answers = iter(range(100))

    @agent(supervisor=Beam(at="step", width=1, expand=4))
    async def program() -> str:
        for _ in range(2):
            answer = int(await gen("q", raw=True, name="step"))
            if answer == 2:
                fail("no good")
            score(-answer)
        return "done"

    def generate(request: Received) -> Answer:
        return 200, {"text": str(next(answers)), "meta_info": {"completion_tokens": 1}}

    async with Server(hive(**{"POST /generate": generate})) as server:
        client = HttpClient(server.url, merge=False)
        await arun(program, model=client, max_concurrency=1)
        asked = [r.body["sampling_params"]["custom_params"]["hive"] for r in server.asked("/generate")]
        discarded = hints(server)
        await client.aclose()
    assert [(tag["state"], tag["sample"]) for tag in asked[:4]] == [(asked[0]["state"], n) for n in range(4)]
    assert {(hint["state"], hint["sample"]) for hint in discarded} == {
        (asked[0]["state"], n) for n in (1, 2, 3)
    }
    assert all(hint["discard"] for hint in discarded)


async def test_other_servers_get_no_hints() -> None:
    @agent(supervisor=BestOfN(2))
    async def program() -> None:
        await gen("q", raw=True)
        await tool(sleep, 0.08)
        fail("no")

    routes = {name: answer for name, answer in hive().items() if "/hive" not in name}
    async with Server(routes) as server:
        await arun(program, model=server.url)
        assert server.asked("/generate") or server.asked("/v1/completions")
        assert hints(server) == []


async def test_hints_of_one_turn_are_one_request() -> None:
    async with Server(hive()) as server:
        client = await client_of(server)
        for number in range(5):
            client.hint({"session": f"s{number}", "discard": True})
        await settled()
        (request,) = server.asked("/hive/hints")
        assert [hint["session"] for hint in request.body["hints"]] == [f"s{number}" for number in range(5)]
        await client.aclose()


async def test_only_one_request_with_hints_is_in_flight_and_the_oldest_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_requests, "MAX_HINTS", 3)
    going, go = asyncio.Event(), asyncio.Event()

    async def slow(request: Received) -> Answer:
        going.set()
        await go.wait()
        return 200, {}

    async with Server(hive(**{"POST /hive/hints": slow})) as server:
        client = await client_of(server)
        client.hint(HINT)
        await going.wait()
        for number in range(5):
            client.hint({"session": f"s{number}", "discard": True})
            await asyncio.sleep(0)
        assert len(server.asked("/hive/hints")) == 1
        go.set()
        await settled()
        assert [hint["session"] for hint in hints(server)] == ["s", "s2", "s3", "s4"]
        assert client.hints_lost == 2
        await client.aclose()


@pytest.mark.parametrize(
    ("answer", "lost", "again"),
    [
        ((500, {"error": "out of order"}), 1, True),
        ((400, {"error": "what is a hint?"}), 1, True),
        ((200, b"<html>"), 1, True),
        ((404, {"detail": "Not Found"}), 0, False),
    ],
)
async def test_failures_are_counted_and_not_raised(answer: Answer, lost: int, again: bool) -> None:
    async with Server(hive(**{"POST /hive/hints": lambda request: answer})) as server:
        client = await client_of(server)
        client.hint(HINT)
        await settled()
        assert client.hints_lost == lost
        client.hint(HINT)
        await settled()
        assert len(server.asked("/hive/hints")) == 1 + again, "a server without the route is not asked again"
        await client.aclose()


def test_a_hint_that_an_event_loop_left_behind_is_sent_by_the_next() -> None:
    sent: list[Any] = []

    class Hanging:
        """A transport whose first request never ends."""

        url = "http://server"

        def __init__(self) -> None:
            self.tasks: dict[Any, asyncio.Task[None]] = {}

        def connection(self) -> Hanging:
            return self

        def start(self, key: Any, task: asyncio.Task[None]) -> None:
            self.tasks[key] = task
            task.add_done_callback(lambda _: self.tasks.pop(key))

        async def send(self, *_args: Any, **_keywords: Any) -> dict[str, Any]:
            sent.append(_args[2])
            if len(sent) == 1:
                await asyncio.sleep(3600)
            return {}

    control = control_requests.ControlRequests(Hanging(), None, 1.0, 1)  # type: ignore[arg-type]

    async def hint(number: int) -> None:
        control.hint({"session": f"s{number}", "discard": True})
        await asyncio.sleep(0.01)

    async def first() -> None:
        await hint(0)
        await hint(1)

    asyncio.run(first())
    assert control.hints_lost == 1, "the delivery was cancelled"
    asyncio.run(hint(2))
    assert [one["session"] for one in sent[1]["hints"]] == ["s1", "s2"]


async def test_a_closed_client_sends_no_hints() -> None:
    async with Server(hive()) as server:
        client = await client_of(server)
        client.hint(HINT)
        await client.aclose()
        await settled()
        assert hints(server) == []
        assert client.hints_lost == 0


async def test_all_servers_behind_a_router_get_hints() -> None:
    async with Server(hive()) as router, Server(hive()) as one, Server(hive()) as other:
        client = HttpClient(router.url, servers=[one.url, other.url])
        await client.register("a", "s")
        client.hint(HINT)
        await settled()
        assert (hints(router), hints(one), hints(other)) == ([], [HINT], [HINT])
        await client.aclose()


def test_tools_are_known_by_their_functions() -> None:
    times = ToolTimes()
    assert times.mean(sleep) is None
    times.add(functools.partial(sleep, 1), 1.0)
    times.add(sleep, 3.0)
    assert times.mean(sleep) == 2.0
    assert times.mean(len) is None


def test_the_number_of_known_tools_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_MAX_TOOLS", 2)
    times = ToolTimes()
    for function in (len, sorted, len, max):
        times.add(function, 1.0)
    assert (times.mean(len), times.mean(sorted), times.mean(max)) == (1.0, None, 1.0)
