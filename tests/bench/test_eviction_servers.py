"""A recorded run on servers: how it is replayed, on a server of paper, and what the rows say."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from bench.eviction import __main__ as bench
from bench.eviction.live import NGRAM, plan, replay_live
from bench.eviction.outcome import Outcome
from bench.eviction.report import Report
from bench.eviction.scenarios import Scenario
from bench.eviction.servers import Bound, ServerRun, clairvoyant_share, rows_and_goals
from bench.harness.client import BenchError
from bench.traces.recording import recordings
from bench.traces.trace import Event, Request, Trace, first_rounds, rounds_of

LONG = NGRAM + 2


def request(agent: str, session: str, prompt: Sequence[int], output: Sequence[int]) -> Request:
    return Request(agent, session, array("q", prompt), array("q", output))


def in_turn(requests: Sequence[Request], *ends: str) -> Trace:
    """One request after the other, then the ends of sessions."""
    events: list[Event] = []
    for number in range(len(requests)):
        events += [("start", number), ("finish", number)]
    return Trace(requests, [*events, *(("end", session) for session in ends)])


SAID = list(range(500, 500 + LONG))
DIALOGUE = in_turn(
    [
        request("Decision", "s0", [1, 2, 3], SAID),
        request("Patcher", "s0", [1, 2, 3, *SAID, 4], [7, 8]),
        request("Decision", "s0", [1, 2, 3, *SAID, 5, 7, 8], SAID),
        request("Patcher", "s1", [1, *SAID], [9]),
    ],
    "s0",
    "s1",
)


def test_a_round_ends_when_the_patcher_has_done_its_part() -> None:
    assert rounds_of(DIALOGUE) == [1, 1, 2, 1]
    first = first_rounds(DIALOGUE, 1)
    assert [len(each.prompt) for each in first.requests] == [3, 4 + LONG, 1 + LONG]
    assert first.events == [
        *(("start", 0), ("finish", 0), ("start", 1), ("finish", 1), ("start", 2), ("finish", 2)),
        *(("end", "s0"), ("end", "s1")),
    ]
    assert first_rounds(DIALOGUE, 2) == DIALOGUE


def test_outputs_of_the_same_session_are_found_in_later_prompts() -> None:
    prompts = plan(DIALOGUE).prompts
    assert [[part.output_of for part in parts] for parts in prompts] == [
        [None],
        [None, 0, None],
        [None, 0, None],
        [None],
    ]
    # What is short stays as recorded, and what another session said is its own.
    assert list(prompts[2][2].tokens) == [5, 7, 8]
    assert list(prompts[3][0].tokens) == [1, *SAID]


def test_requests_wait_for_their_session_and_sessions_for_those_that_ended_before() -> None:
    requests = [request("Patcher", session, [1], [2]) for session in ("s0", "s1", "s0", "s2")]
    trace = Trace(
        requests,
        [
            *(("start", 0), ("start", 1), ("finish", 0), ("start", 2), ("finish", 2), ("end", "s0")),
            *(("start", 3), ("finish", 1), ("finish", 3)),
        ],
    )
    assert plan(trace).after == [[], [], [0], []]
    assert plan(trace).after_sessions == [[], [], [], ["s0"]]


class PaperServer:
    """Answers with numbers of its own, remembers what it was sent, and evicts 11 tokens per request."""

    def __init__(self, refuse: Callable[[list[int]], httpx.Response | None] = lambda prompt: None) -> None:
        self.prompts: dict[str, list[list[int]]] = {}
        self.ended: list[str] = []
        self.requests = 0
        self.refuse = refuse

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer), base_url="http://paper")

    def answer(self, asked: httpx.Request) -> httpx.Response:
        path = asked.url.path
        if path == "/hive/stats":
            return httpx.Response(200, json={"radix_cache": {"evicted_tokens": 1000 + 11 * self.requests}})
        if path.startswith("/hive/sessions/"):
            self.ended.append(path.rpartition("/")[2])
            return httpx.Response(200, json={})
        body = json.loads(asked.content)
        refusal = self.refuse(body["input_ids"])
        if refusal is not None:
            return refusal
        params = body["sampling_params"]
        assert params["ignore_eos"]
        tag = params["custom_params"]["hive"]
        assert tag["session"] not in self.ended
        self.prompts.setdefault(tag["session"], []).append(body["input_ids"])
        self.requests += 1
        output = [self.requests * 1000 + at for at in range(params["max_new_tokens"])]
        return httpx.Response(
            200, json={"output_ids": output, "meta_info": {"cached_tokens": len(body["input_ids"]) // 2}}
        )


async def test_a_replay_continues_what_this_server_said() -> None:
    server = PaperServer()
    async with server.client() as http:
        outcome, seconds = await replay_live(http, DIALOGUE)
    first, second, third = server.prompts["s0"]
    assert first == [1, 2, 3]
    said = second[3 : 3 + LONG]
    assert said[0] % 1000 == 0
    assert said == [said[0] + at for at in range(LONG)]
    assert third == [1, 2, 3, *said, 5, 7, 8]
    assert server.prompts["s1"] == [[1, *SAID]]
    assert sorted(server.ended) == ["s0", "s1"]
    assert outcome.evicted_tokens == 44
    lengths = [len(each.prompt) for each in DIALOGUE.requests]
    assert outcome.prompt_tokens == sum(lengths)
    assert outcome.prefill_tokens == sum(length - length // 2 for length in lengths)
    assert seconds > 0


def full(prompt: list[int]) -> httpx.Response | None:
    return httpx.Response(400, text="prompt too long") if len(prompt) > 3 else None


def lost(prompt: list[int]) -> httpx.Response | None:
    if len(prompt) > 3:
        raise httpx.ReadError("gone")
    return None


@pytest.mark.parametrize(
    ("refuse", "message"),
    [(full, "HTTP 400: prompt too long"), (lost, r"the server does not answer: ReadError\('gone'\)")],
)
async def test_a_refused_request_is_one_sentence(
    refuse: Callable[[list[int]], httpx.Response | None], message: str
) -> None:
    async with PaperServer(refuse).client() as http:
        with pytest.raises(BenchError, match=message):
            await replay_live(http, DIALOGUE)


async def test_a_server_that_does_not_say_what_it_evicts_is_refused() -> None:
    stock = httpx.MockTransport(lambda asked: httpx.Response(404))
    async with httpx.AsyncClient(transport=stock, base_url="http://paper") as http:
        with pytest.raises(BenchError, match="does not say what it evicted"):
            await replay_live(http, DIALOGUE)


def outcome_of(hot: int, cold: int, evicted: int) -> Outcome:
    """1000 prompt tokens of Patcher and of Summary, so many of which were found."""
    outcome = Outcome(evicted_tokens=evicted)
    outcome.count("Patcher", 1000, hot)
    outcome.count("Summary", 1000, cold)
    return outcome


SCENARIO = Scenario("rtl-x", "a run", (100,), recordings()[0])
BOUND = Bound(outcome_of(400, 100, 1000), outcome_of(900, 200, 500))


def test_rows_of_servers_are_medians_over_the_repeats() -> None:
    runs = [
        ServerRun(7, policy, outcome, seconds)
        for policy, outcome, seconds in (
            ("lru", outcome_of(400, 100, 1000), 10.0),
            ("density", outcome_of(600, 90, 900), 8.0),
            ("lru", outcome_of(500, 110, 800), 12.0),
            ("density", outcome_of(800, 80, 700), 9.0),
        )
    ]
    rows, goals = rows_and_goals(SCENARIO, 100, {7: BOUND}, runs)
    lru, density = rows
    assert (lru.policy, lru.rounds, lru.seeds, lru.evict_calls) == ("lru", 7, 2, None)
    assert (lru.hot_hit, lru.cold_hit, lru.wall_s) == (0.45, pytest.approx(0.105), 11)
    assert lru.hit == pytest.approx(1 - lru.prefill_tokens / lru.prompt_tokens)
    assert (density.hot_hit, density.evicted_tokens, density.prefill_tokens) == (0.7, 800, 1215)
    assert density.gap_closed == (1445 - 1215) / (1445 - 900)
    assert density.hit_by_agent == {"Patcher": 0.7, "Summary": pytest.approx(0.085)}
    # Hot misses 550 -> 300, where clairvoyance has 600 -> 100; evicted 900 -> 800, where it has 1000 -> 500.
    assert [goal.value for goal in goals] == [
        pytest.approx((1 - 300 / 550) / (1 - 100 / 600)),
        pytest.approx((1 - 800 / 900) / 0.5),
    ]
    assert goals[0].where == "rtl-x, pool 100, 7 rounds"


def test_without_the_baseline_there_are_rows_and_no_goals() -> None:
    rows, goals = rows_and_goals(
        SCENARIO, 100, {7: BOUND}, [ServerRun(7, "density", outcome_of(1, 1, 1), 1.0)]
    )
    assert [row.gap_closed for row in rows] == [None]
    assert goals == []


def test_where_clairvoyance_saves_nothing_there_is_no_share_of_it() -> None:
    same = Bound(BOUND.baseline, BOUND.baseline)
    assert (
        clairvoyant_share([BOUND.baseline], [BOUND.baseline], same, lambda each: each.evicted_tokens) is None
    )


def test_what_was_replayed_is_written_though_a_server_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> list[ServerRun]:
        raise BenchError("HTTP 400: no")

    monkeypatch.setattr(bench, "run_servers", refused)
    file = tmp_path / "report.json"
    with pytest.raises(SystemExit, match="bench: HTTP 400: no"):
        bench.main(["--only", "rtl", "server", "--json", str(file), "--quick", "--workers", "1"])
    report = Report.model_validate_json(file.read_text())
    assert report.failed == "HTTP 400: no"
    assert {row.source for row in report.rows} == {"trace"}


def test_a_pool_that_is_too_small_for_the_servers_is_said_first() -> None:
    with pytest.raises(SystemExit, match=r"bench: a request needs .* of a pool of 100 tokens"):
        bench.main(["--json", "unwritten.json", "--server-pool", "100"])


@pytest.mark.parametrize("flag", ["--workers", "--seeds", "--repeats", "--server-pool"])
def test_numbers_are_positive(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--json", "unwritten.json", flag, "0"])
    assert f"argument {flag}: must be at least 1, not 0" in capsys.readouterr().err
