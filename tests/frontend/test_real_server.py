"""A search against the real server with the real small model."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from hive_frontend import (
    HttpClient,
    ModelError,
    RunResult,
    TreeOfThoughts,
    agent,
    arun,
    gather,
    gen,
    run,
    score,
)

from hive.server_process import ServerProcess

pytestmark = pytest.mark.server


@agent(supervisor=TreeOfThoughts(branch_at="propose", branching=4, breadth=2, limit=None), name="searcher")
async def solve(numbers: str) -> str:
    way = ""
    for _ in range(2):
        prompt = f"Numbers: {numbers}. So far: {way or 'nothing'}. Write one step like 4+5=9."
        step = await gen(
            prompt,
            name="propose",
            regex="[0-9]{1,2}[+*-][0-9]{1,2}=[0-9]{1,2}",
            temperature=0.7,
            max_tokens=12,
        )
        way += f"{step}; "
        question = f"Is '{way}' right? Answer: "
        votes = await gather(
            *[
                gen(question, raw=True, choices=["sure", "no"], agent="rater", temperature=0.7, max_tokens=8)
                for _ in range(2)
            ],
            name="rate",
        )
        score(sum(vote == "sure" for vote in votes))
    return way


def server_agents(server: ServerProcess) -> dict[str, Any]:
    agents = httpx.get(f"{server.url}/hive/agents", trust_env=False).json()["agents"]
    return {entry["name"]: entry for entry in agents}


def shape(result: RunResult[Any]) -> list[tuple[Any, ...]]:
    return [(node.id, node.status, node.score, node.replies) for node in result.tree.nodes]


def test_a_search_is_constrained_replayed_and_counted(server: ServerProcess) -> None:
    # One at a time: batches of other sizes round differently, and sampled tokens may drift.
    first = run(solve, "4 5 6 10", model=server.url, seed=1, max_concurrency=1)
    agents = server_agents(server)
    assert agents["searcher"]["requests"] >= first.totals.agents["searcher"].requests > 0
    assert agents["rater"]["requests"] >= first.totals.agents["rater"].requests > 0
    votes = {reply for node in first.tree.nodes for reply in node.replies if node.id.count(".") % 2 == 0}
    assert votes <= {"sure", "no"}
    again = run(solve, "4 5 6 10", model=server.url, seed=1, max_concurrency=1)
    assert shape(again) == shape(first)
    assert again.totals.tokens_replayed > again.totals.tokens_generated
    off = HttpClient(server.url, replay="off")
    assert run(solve, "4 5 6 10", model=off, seed=1, max_concurrency=1).totals.tokens_replayed == 0


def test_a_refusal_is_told_in_the_servers_words(server: ServerProcess) -> None:
    @agent
    async def program() -> str:
        return await gen("q", regex="(", max_tokens=2)

    with pytest.raises(ModelError) as caught:
        run(program, model=server.url)
    assert caught.value.status == 400


async def test_cancelling_a_run_stops_its_request_on_the_server(server: ServerProcess) -> None:
    @agent
    async def program() -> str:
        return await gen("Tell a very long story.", max_tokens=1500, temperature=1.0)

    async def running() -> int:
        async with httpx.AsyncClient(trust_env=False) as http:
            info = (await http.get(f"{server.url}/v1/loads")).json()
        return int(info["loads"][0]["num_running_reqs"])

    async def until(count: int) -> None:
        deadline = time.monotonic() + 15
        while await running() != count:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)

    task = asyncio.create_task(arun(program, model=server.url))
    await until(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(0)
