"""From turns to figures, and whose turn it is when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from rich.console import Console

from bench.harness.client import Client
from bench.harness.statistics import interval, ratio
from bench.kv_segments.accounting import KV
from bench.kv_segments.arms import ArmName, Call
from bench.kv_segments.encoding import RandomTokens
from bench.kv_segments.report import speed_rows
from bench.kv_segments.speed import SpeedSession, SpeedSettings, Turn, WorkloadName, contestants
from bench.kv_segments.timing import (
    by_problem,
    kv_total,
    ratios,
    ttft_by_call_ms,
    ttft_s,
    ttft_with_prefill_s,
)
from tests.bench.kv_segments_server import StandIn

SETTINGS = SpeedSettings(
    workloads=("tot", "iterative"),
    problems=2,
    repetitions=1,
    branches=2,
    votes=1,
    agents=2,
    rounds=1,
    answer_tokens=(3, 6),
    seed=0,
)


def call(name: str, started: float, ttft: float, kv: KV | None = None, decode: bool = True) -> Call:
    first = started + ttft
    return Call(
        name, decode, started, first, first + 1.0 if decode else first, 4, kv or KV(placed=8, exact=2)
    )


def turn(
    arm: ArmName,
    problem: int,
    ttfts: Sequence[float],
    *,
    workload: WorkloadName = "tot",
    repetition: int = 0,
    wall: float = 10.0,
    kv: KV | None = None,
) -> Turn:
    corrector = "none" if arm == "choreographed" else None
    calls = [call(f"call {number}", float(number), ttft, kv) for number, ttft in enumerate(ttfts)]
    return Turn(workload, arm, corrector, problem, repetition, wall, calls)


def test_a_workflow_s_time_is_the_mean_over_its_decode_calls() -> None:
    prefills = [
        call("system", 0.0, 0.5, decode=False),
        call("problem", 0.1, 0.7, decode=False),
    ]
    each = Turn("tot", "choreographed", "none", 0, 0, 5.0, [*prefills, *turn("naive", 0, [0.1, 0.3]).calls])
    assert ttft_s(each) == pytest.approx(0.2)
    # Both prefills took 0.8 s together, as they overlap.
    assert ttft_with_prefill_s(each) == pytest.approx(0.2 + 0.8 / 2)
    assert ttft_with_prefill_s(turn("naive", 0, [0.1, 0.3])) == pytest.approx(0.2)
    assert each.wall_s == 5.0
    assert ttft_by_call_ms([each, turn("naive", 1, [0.3, 0.5])]) == pytest.approx(
        {"call 0": 200.0, "call 1": 400.0}
    )


def test_ratios_are_of_the_same_problems() -> None:
    base = [turn("baseline", 0, [0.4]), turn("baseline", 1, [0.9]), turn("baseline", 2, [7.0])]
    mine = [
        turn("naive", 0, [0.1]),
        turn("naive", 0, [0.2], repetition=1),
        turn("naive", 0, [0.9], repetition=2),
        turn("naive", 1, [0.3]),
    ]
    # The median of the repetitions, and no ratio without a partner.
    assert by_problem(mine, ttft_s) == pytest.approx({0: 0.2, 1: 0.3})
    assert ratios(by_problem(base, ttft_s), by_problem(mine, ttft_s)) == pytest.approx([2.0, 3.0])


def test_an_interval_holds_what_other_problems_could_have_said() -> None:
    assert interval([1.0]) is None
    found = interval([2.0, 2.0, 2.0])
    assert found is not None
    assert (found.low, found.high) == (2.0, 2.0)
    wide, narrow = interval([1.0, 2.0, 3.0, 4.0, 5.0]), interval([2.9, 3.0, 3.0, 3.0, 3.1])
    assert wide is not None
    assert narrow is not None
    assert 1.0 <= wide.low < narrow.low <= 3.0 <= narrow.high < wide.high <= 5.0
    mean = interval([0.0, 1.0], lambda drawn: drawn.mean(axis=-1))
    assert mean is not None
    assert (mean.low, mean.high) == (0.0, 1.0)


def test_shares_of_contexts() -> None:
    turns = [turn("choreographed", 0, [0.1, 0.1]), turn("choreographed", 1, [0.1], kv=KV(1, 2, 3, 4))]
    assert kv_total(turns) == KV(exact=5, placed=18, recomputed=3, missing=4)
    assert ratio(3, 4) == 0.75
    assert ratio(0, 0) is None


def test_rows_of_speed() -> None:
    turns = [
        turn("naive", 0, [0.8]),
        *(turn("baseline", problem, [0.4, 0.8], wall=10.0) for problem in (0, 1)),
        turn("choreographed", 0, [0.1, 0.2], wall=8.0, kv=KV(exact=0, placed=60, recomputed=20, missing=20)),
        turn("choreographed", 1, [0.2, 0.2], wall=5.0, kv=KV(exact=0, placed=60, recomputed=20, missing=20)),
        turn("choreographed", 0, [0.1], workload="parallel"),
    ]
    rows = speed_rows(turns)
    assert [(row.workload, row.arm) for row in rows] == [
        ("tot", "choreographed"),
        ("tot", "baseline"),
        ("tot", "naive"),
        ("parallel", "choreographed"),
    ]
    ours, base, naive, alone = rows
    assert ours.ttft_ratio == pytest.approx((4 + 3) / 2)
    assert ours.e2e_ratio == pytest.approx((1.25 + 2) / 2)
    assert ours.ttft_ratio_interval is not None
    assert ours.ttft_ratio_interval.low == pytest.approx(3)
    assert ours.ttft_ms == pytest.approx(175)
    assert (ours.reuse_rate, ours.tokens_recomputed) == (0.6, 0.25)
    assert (ours.exact_rate, ours.missing_rate) == (0.0, 0.2)
    assert (ours.problems, ours.turns, ours.decode_calls, ours.generated) == (2, 2, 4, 16)
    assert (ours.context, ours.corrector) == ("producer", "none")
    assert (base.ttft_ratio, base.ttft_ratio_interval) == (1.0, None)
    assert (base.reuse_rate, base.tokens_recomputed, base.context) == (None, None, None)
    assert naive.ttft_ratio == pytest.approx(0.6 / 0.8)
    assert naive.ttft_ratio_interval is None
    # Without a baseline there is a time, and no ratio.
    assert (alone.ttft_ratio, alone.e2e_ratio) == (None, None)
    assert all(row.kl_mean is None and row.top1 is None for row in rows)


async def test_all_arms_take_turns_on_every_problem() -> None:
    stand_in = StandIn()
    encoding = RandomTokens(500, 12, 9)
    session = SpeedSession(SETTINGS, Console(quiet=True))
    async with stand_in.server as server, Client(server.url) as client:
        known = {"none": "none", "first-k": {"kind": "first-k", "share": 0.5}}
        crew = contestants(["choreographed", "baseline", "naive", "stock"], known, client, None, encoding)
        assert [(each.arm, each.corrector) for each in crew] == [
            ("choreographed", "none"),
            ("choreographed", "first-k"),
            ("baseline", None),
            ("naive", None),
        ]
        await session.run(crew, None)
        flushes = sum(request.path.startswith("/flush_cache") for request in server.received)
    assert session.left_out == {}
    # Four arms, two workloads, two problems; and once before it counts.
    assert len(session.turns) == 16
    assert flushes == 16 + 8
    order = [(each.arm, each.corrector) for each in session.turns]
    first = [order[begin] for begin in range(0, 16, 4)]
    assert first == [order[0], order[1], order[1], order[2]]
    lengths = {(each.problem, c.generated) for each in session.turns for c in each.calls if c.decode}
    # Votes and verdicts are as long as the others, as those are shorter than the most that they may take.
    assert lengths == {(0, SETTINGS.length(0)), (1, SETTINGS.length(1))}
    rows = speed_rows(session.turns)
    assert len(rows) == 8
    assert len({row.generated for row in rows if row.workload == "tot"}) == 1


async def test_an_arm_that_fails_is_left_out_with_its_turns() -> None:
    stand_in = StandIn()
    decode = stand_in.decode
    calls = 0

    def fails_later(request):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        return decode(request) if calls < 12 else (500, {"error": {"message": "out of order"}})

    stand_in.server.routes["POST /hive/decode"] = fails_later
    session = SpeedSession(SETTINGS, Console(quiet=True))
    async with stand_in.server as server, Client(server.url) as client:
        crew = contestants(
            ["choreographed", "baseline"], {"none": "none"}, client, None, RandomTokens(500, 12, 9)
        )
        await session.run(crew, None)
    assert {each.arm for each in session.turns} == {"baseline"}
    assert len(session.turns) == 4
    assert "out of order" in session.left_out["choreographed"]
    # Each of its sessions is ended, that of the failure as well.
    assert len(stand_in.ended) == len(set(stand_in.ended)) >= 3


async def test_a_problem_is_not_begun_that_would_end_too_late() -> None:
    stand_in = StandIn()
    session = SpeedSession(SETTINGS, Console(quiet=True))
    async with stand_in.server as server, Client(server.url) as client:
        await session.run(contestants(["baseline"], {}, client, None, RandomTokens(500, 12, 9)), 0.0)
    assert {each.problem for each in session.turns} == {0}
    assert session.left_out == {"speed, last 1 of 2 problems": "there was no time"}


def test_lengths_of_answers_are_drawn_for_problems() -> None:
    lengths = [SETTINGS.length(problem) for problem in range(50)]
    assert set(lengths) == {3, 4, 5, 6}
    assert lengths == [SETTINGS.length(problem) for problem in range(50)]
