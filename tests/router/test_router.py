"""Programs through sglang-router: what arrives, where sessions go, what that is worth, and a server that dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter

import httpx
import psutil
import pytest
from hive_frontend import BestOfN, HttpClient, ModelError, agent, arun, gen, stream

from hive.server.server_process import ServerProcess, slowdown
from tests.router.conftest import Fleet
from tests.router.traffic import CALLS, Counts, counted, flush, run_sessions, seen

pytestmark = [pytest.mark.server, pytest.mark.long]

SESSIONS = 8
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def through(fleet: Fleet, url: str | None = None) -> HttpClient:
    return HttpClient(url or fleet.router.url, servers=fleet.urls)


@agent(name="router-guide", supervisor=BestOfN(n=3))
async def guide(country: str) -> str:
    city = await gen(f"The capital of {country} is", raw=True, temperature=0.3, max_tokens=6)
    return await gen(f"Is {city} a city?", choices=["yes", "no"], temperature=0.7, max_tokens=4)


async def test_a_program_works_and_is_known(fleet: Fleet) -> None:
    client = through(fleet)
    ended = []
    for _ in range(2):
        result = await arun(guide, "France", model=client, seed=5, max_concurrency=1)
        assert {state.value for state in result.results} <= {"yes", "no"}
        ended.append(result)
    assert [(node.id, node.replies) for node in ended[0].tree.nodes] == [
        (node.id, node.replies) for node in ended[1].tree.nodes
    ]
    assert ended[0].totals.requests == ended[1].totals.requests == 6
    assert sum(result.totals.tokens_replayed for result in ended) > 0
    assert counted(fleet.urls, "router-guide").requests == 12
    # All servers were told, so that all know an agent that comes to them later.
    assert all(seen(url)["router-guide"]["registered"] for url in fleet.urls)
    await client.aclose()


async def test_an_answer_comes_in_pieces(fleet: Fleet) -> None:
    @agent
    async def writer() -> str:
        return await gen("Write a line about rain.", max_tokens=16, temperature=0.5)

    client = through(fleet)
    async with stream(writer, model=client, seed=3) as live:
        pieces = [piece.text async for piece in live]
    assert "".join(pieces) == live.result.value
    await client.aclose()


async def test_tags_of_bodies_and_other_headers_are_lost(fleet: Fleet) -> None:
    """Why the client sends headers of the other kind; a router that behaves otherwise should be noticed."""
    async with httpx.AsyncClient(base_url=fleet.router.url, timeout=60, trust_env=False) as http:
        body = {"text": "One", "sampling_params": {"max_new_tokens": 2}}
        for name, extra, headers in (
            ("by-body", {"custom_params": {"hive": {"agent": "by-body"}}}, {}),
            ("by-header", {}, {"x-hive-agent": "by-header"}),
            ("by-routed", {}, {"x-request-id-hive-agent": "by-routed"}),
        ):
            asked = {**body, "sampling_params": {**body["sampling_params"], **extra}}
            answer = await http.post("/generate", json=asked, headers=headers)
            assert answer.status_code == 200, answer.text
            assert "hive" in answer.json()["meta_info"], name
        assert (await http.get("/hive/agents")).status_code == 404
        refused = await http.post("/generate", json=body, headers={"x-request-id-hive-agents": "x"})
        assert (refused.status_code, "x-request-id-hive-agents is unknown" in refused.text) == (400, True)
    known = {name for url in fleet.urls for name in seen(url)}
    assert known & {"by-body", "by-header", "by-routed"} == {"by-routed"}


async def test_affinity_keeps_sessions_and_their_hits(fleet: Fleet) -> None:
    ratios: dict[str, Counts] = {}
    seconds = {}
    for policy, router in (("affinity", fleet.router), ("random", fleet.random_router)):
        for url in fleet.urls:
            flush(url)
        began = time.monotonic()
        answers = await run_sessions(through(fleet, router.url), f"{policy}-", SESSIONS)
        seconds[policy] = time.monotonic() - began
        assert [len(session) for session in answers] == [CALLS] * SESSIONS
        ratios[policy] = counted(fleet.urls, f"{policy}-")
        assert ratios[policy].requests == SESSIONS * CALLS
        # All servers know all agents; who had requests is the question.
        on = Counter(
            name
            for url in fleet.urls
            for name, entry in seen(url).items()
            if name.startswith(f"{policy}-") and entry["requests"]
        )
        if policy == "affinity":
            assert set(on.values()) == {1}, "the requests of a session reached several servers"
            assert len(on) == SESSIONS
        else:
            assert max(on.values()) == 2
    for policy, counts in ratios.items():
        rate = counts.requests / seconds[policy]
        print(
            f"{policy}: {counts.replayed:.1%} of output tokens replayed, {counts.cached:.1%} of prompt tokens cached, "
            f"{rate:.2f} requests/s"
        )
    assert ratios["affinity"].replayed > ratios["random"].replayed
    assert ratios["affinity"].cached > ratios["random"].cached


@pytest.mark.skipif(CORES < 2, reason="needs a core for each of two servers")
async def test_two_servers_do_more_than_one(fleet: Fleet) -> None:
    """Each server has a core; so what is compared is one core without a router and two behind one."""
    cores = sorted(os.sched_getaffinity(0))
    for server, core in zip(fleet.servers, cores, strict=False):
        pinned(server, {core})
    seconds: dict[str, list[float]] = {"one": [], "two": []}
    try:
        for turn in range(2):
            for name, client in (("one", HttpClient(fleet.urls[0])), ("two", through(fleet))):
                for url in fleet.urls:
                    flush(url)
                began = time.monotonic()
                answers = await run_sessions(client, f"{name}{turn}-", 2 * SESSIONS)
                seconds[name].append(time.monotonic() - began)
                assert [len(session) for session in answers] == [CALLS] * 2 * SESSIONS
    finally:
        for server in fleet.servers:
            pinned(server, set(cores))
    ratio = min(seconds["one"]) / min(seconds["two"])
    print(f"two servers: {ratio:.2f} times the requests a second of one; seconds {seconds}")
    assert ratio > 1.15


def pinned(server: ServerProcess, cores: set[int]) -> None:
    """Let all processes of a server run on these cores alone."""
    root = psutil.Process(server.process.pid)
    for process in (root, *root.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, cores)


async def test_no_answer_is_lost_when_a_server_dies(fleet: Fleet) -> None:
    """The last test: one of the servers does not come back."""
    client = through(fleet)
    running = asyncio.ensure_future(run_sessions(client, "killed-", SESSIONS))
    end = time.monotonic() + 60 * slowdown()
    # Keys are given to servers by chance; the one that has most to do dies.
    busy = fleet.servers
    while counted([busy[0].url], "killed-").requests < 4:
        assert not running.done()
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
        busy = busy[::-1]
    dying, staying = busy
    os.killpg(dying.process.pid, signal.SIGKILL)
    answers = await running
    assert [len(session) for session in answers] == [CALLS] * SESSIONS
    assert all(all(session) for session in answers)
    # New sessions find the other one, and so does what the router does not forward.
    more = await run_sessions(through(fleet), "later-", 2)
    assert [len(session) for session in more] == [CALLS] * 2
    assert counted([staying.url], "later-").requests == 2 * CALLS
    with pytest.raises(ModelError, match=dying.url):
        await HttpClient(fleet.router.url, servers=[dying.url], attempts=1).register("a", "s")
