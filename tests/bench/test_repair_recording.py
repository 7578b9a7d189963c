"""Recordings: what was asked in which order, and files that give back what was written."""

from __future__ import annotations

import asyncio
import random
from array import array
from pathlib import Path

import pytest
from hive_frontend.testing import FunctionModel

from bench.traces.recording import RecordingModel, load_trace, save_trace
from bench.traces.trace import Event, Request, Trace
from hive import BestOfN, Completion, HttpClient, ModelError, agent, arun, gen
from hive import Request as Call
from hive.server.server_process import ServerProcess


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


def tells_tokens(call: Call) -> Completion:
    return Completion("ab", 2, 0, "stop", ids(call.text), ids("ab"))


@agent(supervisor=BestOfN(2))
async def two_turns() -> str:
    first = await gen("one", max_tokens=8)
    return await gen(f"{first} two", agent="other", max_tokens=8)


async def test_requests_and_events_in_order() -> None:
    model = RecordingModel(FunctionModel(tells_tokens, delay=lambda call: 0.02 * (1 - call.sample)))
    await arun(two_turns, model=model, seed=1)
    trace = model.trace()
    assert [(request.agent, request.session) for request in trace.requests] == [
        *[("two_turns", "s0")] * 2,
        *[("other", "s0")] * 2,
    ]
    assert [request.prompt.tolist() for request in trace.requests] == [
        *[ids("one")] * 2,
        *[ids("ab two")] * 2,
    ]
    assert all(request.output.tolist() == ids("ab") for request in trace.requests)
    # The second sample is the faster one, and goes on first.
    assert trace.events[:4] == [("start", 0), ("start", 1), ("finish", 1), ("start", 2)]
    assert trace.events[-1] == ("end", "s0")
    assert len(trace.events) == 9


async def test_calls_that_are_abandoned_are_left_out() -> None:
    both_asked = asyncio.Event()

    async def hangs(call: Call) -> Completion:
        if call.agent == "two_turns" and call.sample == 0:
            await asyncio.sleep(60)
        if call.agent == "other":
            both_asked.set()
        return tells_tokens(call)

    model = RecordingModel(FunctionModel(hangs))
    searching = asyncio.create_task(arun(two_turns, model=model, seed=1))
    await both_asked.wait()
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    trace = model.trace()
    assert trace.events == [("start", 0), ("finish", 0), ("start", 1), ("finish", 1), ("end", "s0")]
    assert [request.agent for request in trace.requests] == ["two_turns", "other"]


async def test_a_model_that_tells_no_tokens_cannot_be_recorded() -> None:
    with pytest.raises(ModelError, match="come with the tokens"):
        await arun(two_turns, model=RecordingModel(FunctionModel(lambda call: "words")))


def test_a_file_gives_back_what_was_written_and_is_small(tmp_path: Path) -> None:
    rng = random.Random(3)
    system = [rng.randrange(50_000) for _ in range(500)]
    requests: list[Request] = []
    events: list[Event] = []
    for session in range(4):
        prompt = list(system)
        for _ in range(20):
            prompt += [rng.randrange(50_000) for _ in range(10)]
            output = [rng.randrange(50_000) for _ in range(5)]
            requests.append(Request("a", f"s{session}", array("q", prompt), array("q", output)))
            events += [("start", len(requests) - 1), ("finish", len(requests) - 1)]
            prompt += output
        events.append(("end", f"s{session}"))
    path = tmp_path / "trace.json.xz"
    save_trace(Trace(requests, events), path)
    assert load_trace(path) == Trace(requests, events)
    # New tokens are some 1,700, at 2 to 3 bytes each; all prompts together have 50,000.
    assert path.stat().st_size < 10_000


def test_odd_traces(tmp_path: Path) -> None:
    same = Request(None, None, array("q", [1, 2, 3]), array("q", []))
    trace = Trace(
        [same, same, same._replace(prompt=array("q", [1, 2])), same._replace(prompt=array("q"))], []
    )
    save_trace(trace, tmp_path / "trace.json.xz")
    assert load_trace(tmp_path / "trace.json.xz") == trace
    (tmp_path / "no-trace.json.xz").write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"no-trace\.json\.xz is no trace"):
        load_trace(tmp_path / "no-trace.json.xz")


@pytest.mark.server
async def test_what_the_real_server_tells(server: ServerProcess) -> None:
    model = RecordingModel(HttpClient(server.url))
    await arun(two_turns, model=model, seed=1)
    await model.aclose()
    trace = model.trace()
    assert len(trace.requests) == 4
    assert all(request.prompt and request.output for request in trace.requests)
    assert trace.requests[0].prompt == trace.requests[1].prompt
