"""Sessions of real agents in the eviction bench: their formats, who arrives when, and what the report says."""

from __future__ import annotations

import json
import lzma
import math
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.eviction import __main__ as bench
from bench.eviction.closed_loop import closed_loop, trace_of
from bench.eviction.policies import POLICIES, Policy
from bench.eviction.pool_replay import PoolReplay
from bench.eviction.report import Report
from bench.eviction.serve import FIRST_TOKEN, TOKENS, Pressure, Served, replay_served, tokens_of
from bench.harness.client import BenchError
from bench.traces.prefix_tree import PrefixTree
from bench.traces.sessions import Call, Half, Session, half_of, load_sessions

HALVES: tuple[Half, ...] = ("build", "check")


def turn(t: float, think: float, stop: str, asks: str, **blocks: object) -> dict[str, Any]:
    return {
        "t": t,
        "type": "n",
        "api_time": 2.0,
        "think_time": think,
        "out": 9,
        "stop": stop,
        "input_types": [asks],
        **blocks,
    }


SUBAGENT = {
    "t": 8.0,
    "type": "subagent",
    "agent_id": "a1",
    "subagent_type": "Explore",
    "duration_ms": 5000,
    "requests": [turn(0.0, 0.0, "end_turn", "text", hash_ids=[9, 8])],
}
ORIGINAL = {
    "id": "x",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        turn(0.0, 0.0, "tool_use", "text", hash_ids=[1, 2, 3]),
        SUBAGENT,
        turn(10.0, 8.0, "end_turn", "tool_result", hash_ids=[1, 2, 3, 4]),
        turn(5000.0, 4988.0, "end_turn", "text", hash_ids=[1, 2, 5]),
    ],
}
COMPACT = {
    **ORIGINAL,
    "name": "one.json",
    "requests": [
        turn(0.0, 0.0, "tool_use", "text", kept=0, new=[1, 2, 3]),
        {**SUBAGENT, "requests": [turn(0.0, 0.0, "end_turn", "text", kept=0, new=[9, 8])]},
        turn(10.0, 8.0, "end_turn", "tool_result", kept=3, new=[4]),
        turn(5000.0, 4988.0, "end_turn", "text", kept=2, new=[5]),
    ],
}


@pytest.fixture(params=["folder", "jsonl", "jsonl.xz"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two sessions in each format of the public corpus."""
    if request.param == "folder":
        for name in ("one.json", "two.json"):
            (tmp_path / name).write_text(json.dumps(ORIGINAL))
        return tmp_path
    text = "".join(json.dumps({**COMPACT, "name": name}) + "\n" for name in ("one.json", "two.json"))
    path = tmp_path / f"traces.{request.param}"
    path.write_bytes(lzma.compress(text.encode()) if request.param == "jsonl.xz" else text.encode())
    return path


def test_all_formats_say_the_same(corpus: Path) -> None:
    one, two = load_sessions(corpus)
    assert [session.name for session in (one, two)] == ["one.json", "two.json"]
    first, second, third = one.calls
    base = first.blocks[0] - 1
    assert [[block - base for block in call.blocks] for call in one.calls] == [
        [1, 2, 3],
        [1, 2, 3, 4],
        [1, 2, 5],
    ]
    # Ids are local to a session.
    assert not {*first.blocks} & {*two.calls[0].blocks}
    assert [call.think_s for call in one.calls] == [0.0, 8.0, 600.0]
    assert [(call.stopped, call.asks) for call in one.calls] == [
        *(("tool", "human"), ("human", "tool"), ("human", "human")),
    ]
    (child,) = first.children
    # It ended at 8, after 5 seconds; its parent's answer ended at 2.
    assert (child.name, child.starts_s, child.calls[0].agent) == ("one.json/a1", 1.0, "Explore")
    assert [block - base for block in child.calls[0].blocks] == [9, 8]
    assert second.service_s == third.service_s == 2.0


def test_halves_part_the_sessions(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    names = [f"{number}.json" for number in range(16)]
    path.write_text("".join(json.dumps({**COMPACT, "name": name}) + "\n" for name in names))
    build, check = ([session.name for session in load_sessions(path, half)] for half in HALVES)
    assert build
    assert check
    assert sorted(build + check) == sorted(names)
    assert {half_of(name) for name in check} == {"check"}


@pytest.mark.parametrize("text", ["[1]", "{", '{"requests": 3, "name": "x"}', ""])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other.jsonl (is no trace of|has no) sessions"):
        load_sessions(path)


def test_a_subagent_runs_while_its_parent_waits(corpus: Path) -> None:
    sessions = load_sessions(corpus)[:1]
    trace = trace_of(sessions)
    events, moments = closed_loop(sessions, trace, PrefixTree(trace), 100, 32, seed=0)
    assert [request.session for request in trace.requests] == [
        *("one.json", "one.json/a1", "one.json", "one.json"),
    ]
    assert list(events) == [
        *(("start", 0), ("finish", 0), ("start", 1), ("finish", 1), ("end", "one.json/a1")),
        *(("start", 2), ("finish", 2), ("start", 3), ("finish", 3), ("end", "one.json")),
    ]
    assert [(moment.arrived, moment.finished) for moment in moments] == [(0, 2), (3, 5), (10, 12), (612, 614)]
    assert [moment.then for moment in moments] == ["subagent", "end", "human", "end"]
    assert [moment.away for moment in moments] == [8, math.inf, 600, math.inf]
    assert [moment.stopped for moment in moments] == ["tool", "human", "human", "human"]
    assert [moment.hinted is None for moment in moments] == [False, True, False, True]


def simple(name: str, *prompts: list[int], starts: float | None = None) -> Session:
    calls = [Call(array("q", prompt), 1.0, 3.0, "main", "human", "human") for prompt in prompts]
    return Session(name, calls, starts)


def test_sessions_wait_for_a_place_and_for_room() -> None:
    sessions = [simple("a", [1, 2, 3]), simple("b", [4, 5, 6]), simple("c", [7, 8]), simple("d", [9])]
    trace = trace_of(sessions)
    tree = PrefixTree(trace)
    events, moments = closed_loop(sessions, trace, tree, 6, 3, seed=0)
    # No two prompts fit into 6 blocks together, and "d" begins when the first session has ended.
    assert [event for event in events if event[0] == "start"] == [("start", number) for number in range(4)]
    assert [moment.finished for moment in moments] == [1, 2, 3, 4]
    assert [moment.arrived for moment in moments] == [0, 0, 0, 1]
    timed = [simple("a", [1], starts=5.0), simple("b", [2], [2, 3], starts=2.0)]
    trace = trace_of(timed)
    moments = closed_loop(timed, trace, PrefixTree(trace), 100, 1, seed=0).moments
    assert [moment.arrived for moment in moments] == [5, 2, 6]


@pytest.mark.parametrize("policy", ["lru", "session-radix", "density"])
def test_ends_of_sessions_are_told(policy: str) -> None:
    """A session that has ended is worth nothing: what is still used stays, though it is older."""
    sessions = [
        Session(
            "a", [Call(array("q", [1, 2, 3, 4]), 1.0, 9.0, "main", None, "human") for _ in range(2)], 0.0
        ),
        simple("b", [5, 6, 7, 8], starts=2.0),
        simple("c", [9, 10, 11, 12], starts=4.0),
    ]
    trace = trace_of(sessions)
    events, moments = closed_loop(sessions, trace, PrefixTree(trace), 9, 1, seed=0)
    outcome = PoolReplay(trace, events, 9, POLICIES[policy], moments).run()
    assert outcome.by_agent["main"].cached == (0 if policy == "lru" else 3)


def test_the_command(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "out" / "report.json"
    arms = ["--arms", "session-radix", "density", "--pools", "640", "--seeds", "2", "--workers", "1"]
    bench.main(["--trace", str(corpus), "--json", str(report), *arms])
    rows = Report.model_validate_json(report.read_text()).sessions
    assert [(row.seed, row.policy) for row in rows] == [
        (seed, policy) for seed in (0, 1) for policy in ("lru", "session-radix", "density", "clairvoyant")
    ]
    assert {(row.sessions, row.requests, row.prompt_blocks) for row in rows} == {(2, 8, 24)}
    assert "session-radix" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="bench: no sessions fit into a pool of 64 tokens"):
        bench.main(["--trace", str(corpus), "--json", str(report), "--pools", "64"])


def test_blocks_are_the_same_tokens_wherever_they_stand() -> None:
    one, other = (Call(array("q", blocks), 1, 1, "a", None, "tool") for blocks in ([1, 2, 2**50], [2, 7]))
    tokens = tokens_of(one, 4)
    assert tokens[4:8] == tokens_of(other, 4)[:4]
    assert len({*tokens}) == len(tokens) == 12
    assert all(FIRST_TOKEN <= token < FIRST_TOKEN + TOKENS for token in tokens)


class Recorder:
    """A server that answers at once, and remembers what it was sent."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.ended: list[str] = []

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if len(body["input_ids"]) > 10:
            return web.Response(status=400, text="too long")
        answer = web.StreamResponse()
        await answer.prepare(request)
        meta = {"cached_tokens": 1, "finish_reason": {"type": "length"}}
        await answer.write(f"data: {json.dumps({'meta_info': meta})}\n\n".encode())
        return answer

    async def end(self, request: web.Request) -> web.Response:
        self.ended.append(request.match_info.get("name") or (await request.json())["session_id"])
        return web.json_response({})


async def served(sessions: list[Session], policy: Policy) -> tuple[Recorder, Served]:
    recorder = Recorder()
    app = web.Application()
    app.router.add_post("/generate", recorder.generate)
    app.router.add_post("/close_session", recorder.end)
    app.router.add_delete("/hive/sessions/{name}", recorder.end)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        return recorder, await replay_served(url, sessions, policy, Pressure(32, 1e4, 2, 100))
    finally:
        await runner.cleanup()


async def test_servers_get_what_their_policy_may_know(corpus: Path) -> None:
    sessions = load_sessions(corpus)[:1]
    stock, outcome = await served(sessions, POLICIES["lru"])
    assert [len(body["input_ids"]) for body in stock.bodies] == [6, 4, 8, 6]
    assert stock.bodies[0].keys() == {"input_ids", "sampling_params", "stream"}
    assert (outcome.prompt_tokens, outcome.cached_tokens) == (24, 4)
    assert (len(outcome.ttft), len(outcome.returning)) == (4, 2)
    assert not stock.ended
    aware, _ = await served(sessions, POLICIES["session-radix"])
    assert [body["session_id"] for body in aware.bodies] == [
        *("one.json", "one.json.a1", "one.json", "one.json"),
    ]
    assert aware.ended == ["one.json.a1", "one.json"]
    hive, _ = await served(sessions, replace(POLICIES["density"], hints=True))
    tags = [body["sampling_params"]["custom_params"]["hive"] for body in hive.bodies]
    assert hive.ended == aware.ended
    assert [(tag["agent"], tag["expects"]["event"]) for tag in tags] == [
        *(("main", "subagent"), ("Explore", "end"), ("main", "human"), ("main", "end")),
    ]
    assert tags[2]["expects"]["seconds"] > 0
    # The next request came with a tool's result, 8 s later.
    assert 8e-5 < tags[0]["expects"]["seconds"] < 8e-2


async def test_a_server_that_refuses_ends_the_run() -> None:
    with pytest.raises(BenchError, match="HTTP 400: too long"):
        await served([simple("a", list(range(9)))], POLICIES["lru"])
