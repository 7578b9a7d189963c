"""From turns to figures, and what servers say that they computed."""

from __future__ import annotations

import pytest

from bench.peers.analysis import best_peer, figure, interval, ratio, ratios, step_ms
from bench.peers.arms import ArmName
from bench.peers.counters import Counters, read
from bench.peers.report import row_of
from bench.peers.steps import Steps
from bench.peers.turns import ServerInfo, Turn
from bench.peers.workers import Score


def turn(
    arm: ArmName,
    block: int,
    solved: int,
    wall_s: float,
    latencies_s: list[float] | None = None,
    computed: Counters | None = None,
    draft_tokens: int | None = None,
) -> Turn:
    """Two tasks, forty tokens."""
    return Turn(
        arm=arm,
        block=block,
        score=Score(2, solved),
        wall_s=wall_s,
        client_cpu_s=0.003,
        steps=Steps(latencies_s or [0.1], generated=40, replayed=10),
        computed=computed,
        host_bytes=100 * (block + 1),
        device_bytes=None,
        server=ServerInfo(draft_tokens, 500),
    )


def test_figures_are_those_of_all_turns_together() -> None:
    turns = [turn("hive", 0, 1, 20.0, [0.1, 0.3]), turn("hive", 1, 2, 40.0, [0.2])]
    assert figure(turns, "tasks_per_minute") == pytest.approx(4.0)
    assert figure(turns, "solved_per_minute") == pytest.approx(3.0)
    assert figure(turns, "tokens_computed_per_solved") == pytest.approx(80 / 3)
    assert figure(turns, "step_p50_ms") == pytest.approx(200.0)
    assert step_ms(turns, 99) == pytest.approx(298.0)
    assert figure(turns, "prompt_tokens_per_request") is None, "the server of this arm counts nothing"
    counted = [
        turn("hive", 0, 1, 1.0, [0.1, 0.3], Counters(90)),
        turn("hive", 1, 1, 1.0, [0.2], Counters(60)),
    ]
    assert figure(counted, "prompt_tokens_per_request") == pytest.approx(50.0)


def test_nothing_to_compute_a_figure_from() -> None:
    unsolved = [turn("hive", 0, 0, 20.0)]
    assert figure(unsolved, "solved_per_minute") == 0.0
    assert figure(unsolved, "tokens_computed_per_solved") is None
    assert ratio(unsolved, unsolved, "solved_per_minute") is None
    assert figure([], "tasks_per_minute") is None
    assert step_ms([], 50) is None


def test_a_ratio_and_its_interval() -> None:
    ours = [turn("hive", block, 1, 10.0 + block) for block in range(6)]
    other = [turn("stock", block, 1, 2 * (10.0 + block)) for block in range(6)]
    assert ratio(ours, other, "tasks_per_minute") == pytest.approx(2.0)
    # A block's turns are drawn together: where each block has the same ratio, so has every draw.
    assert interval(ours, other, "tasks_per_minute") == pytest.approx((2.0, 2.0))
    other[0] = turn("stock", 0, 1, 60.0)
    low, high = interval(ours, other, "tasks_per_minute") or (0.0, 0.0)
    assert low < ratio(ours, other, "tasks_per_minute") < high  # type: ignore[operator]
    assert interval(ours, other, "tasks_per_minute") == (low, high)


def test_no_interval_without_blocks_or_without_solutions() -> None:
    ours = [turn("hive", block, 1, 10.0) for block in range(4)]
    assert interval(ours[:1], [turn("stock", 0, 1, 10.0)], "tasks_per_minute") is None
    assert interval(ours, [turn("stock", b, 0, 10.0) for b in range(4)], "solved_per_minute") is None
    # Only what both have is compared.
    assert interval(ours, [turn("stock", 3, 1, 10.0)], "tasks_per_minute") is None


def test_the_best_peer_is_the_best_in_the_figure_and_none_of_ours() -> None:
    by_arm: dict[ArmName, list[Turn]] = {
        "hive": [turn("hive", 0, 2, 1.0, [0.001])],
        "stock": [turn("stock", 0, 2, 30.0, [0.1])],
        "asyncio": [turn("asyncio", 0, 1, 10.0, [0.2])],
        "n_k": [turn("n_k", 0, 1, 20.0, [0.05])],
        "asyncio_on_hive": [turn("asyncio_on_hive", 0, 2, 1.0, [0.001])],
    }
    assert best_peer(by_arm, "tasks_per_minute") == "asyncio"
    assert best_peer(by_arm, "tokens_computed_per_solved") == "stock"
    # A step of n=k is several answers.
    assert best_peer(by_arm, "step_p50_ms") == "stock"
    assert best_peer({"hive": by_arm["hive"]}, "step_p50_ms") is None
    found = {(each.figure, each.other, each.best_peer): each for each in ratios("tot", by_arm, "command")}
    assert found["tasks_per_minute", "stock", False].value == pytest.approx(30.0)
    assert found["tasks_per_minute", "asyncio", True].value == pytest.approx(10.0)
    assert found["step_p50_ms", "stock", True].better == "lower"
    assert all(each.low is None and each.command == "command" for each in found.values())
    assert ratios("tot", {"stock": by_arm["stock"]}, "command") == []


def test_a_row() -> None:
    turns = [
        turn("ngram", 0, 1, 20.0, [0.1, 0.3], Counters(100, 50, 6, 7, 3, 9.0), 12),
        turn("ngram", 1, 2, 60.0, [0.2], Counters(10, 5, 1, 1, 1, 1.0), 12),
    ]
    row = row_of("tot", "ngram", turns)
    assert (row.tasks, row.solved, row.requests, row.wall_s) == (4, 3, 3, 80.0)
    assert (row.tokens_computed, row.tokens_replayed) == (80, 20)
    assert (row.prompt_tokens_computed, row.prompt_tokens_cached, row.tokens_verified) == (110, 55, 84)
    assert (row.host_bytes, row.device_bytes, row.model_bytes) == (200, None, 500)
    assert (row.extends, row.decode_steps, row.running_mean) == (8, 4, 2.5)
    assert row.client_cpu_ms_per_request == pytest.approx(2.0)
    assert row.tasks_per_minute == pytest.approx(3.0)
    assert row.tasks_per_minute_median == pytest.approx((6.0 + 2.0) / 2)
    assert [block.solved for block in row.blocks] == [1, 2]
    assert row_of("tot", "stock", [turn("stock", 0, 1, 1.0, [], Counters(1, 2, 0))]).tokens_verified is None
    unknown = row_of("tot", "ngram", [*turns, turn("ngram", 2, 0, 1.0)])
    assert unknown.prompt_tokens_computed is None
    assert (unknown.extends, unknown.decode_steps, unknown.running_mean) == (None, None, None)
    assert row_of("tot", "stock", [turn("stock", 0, 1, 1.0, [], Counters(1))]).running_mean is None


def test_counters_of_a_server() -> None:
    text = """
# HELP sglang:realtime_tokens_total Total number of tokens processed.
# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_compute",model_name="a \\"b\\" {c}",tp_rank="0"} 1200.0
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_compute",model_name="other",tp_rank="0"} 1e2
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_cache",model_name="m",tp_rank="0"} 340.0
sglang:realtime_tokens_total{engine_type="unified",mode="decode",model_name="m",tp_rank="0"} 99.0
sglang:spec_verify_calls_total{model_name="m"} 7.0
sglang:cuda_graph_passes_total{mode="prefill_none",model_name="m"} 4.0
sglang:cuda_graph_passes_total{mode="decode_cuda_graph",model_name="m"} 30.0
sglang:cuda_graph_passes_total{mode="decode_none",model_name="m"} 3.0
sglang:realtime_tokens_created{mode="prefill_compute"} 1.7e9
sglang:gen_throughput 5.5
"""
    counters = read(text)
    assert counters == Counters(1300, 340, verifications=7, extends=4, decode_steps=33, in_steps=7)
    assert counters - Counters(300, 40, 2, 3, 2, 1) == Counters(1000, 300, 5, 1, 31, 6)
    assert counters + Counters(1, 2, 3) == Counters(1301, 342, 10, 4, 33, 7)
    assert read("") == Counters()
    # Without speculation every request of a step gets one token.
    assert read(text.replace("spec_verify", "other")).running_mean == pytest.approx(99 / 33)


def test_passes_are_those_that_hives_server_counts_where_it_does() -> None:
    counted = Counters(1300, 340, 0, 4, 33, 99.0)
    assert counted.by_hive({}) == counted
    stats: dict[str, dict[str, float]] = {
        "scheduler": {"extends": 2, "decode_steps": 50, "running_mean": 3.5}
    }
    assert counted.by_hive(stats) == Counters(1300, 340, 0, 2, 50, 175.0)
    stats["scheduler"]["decoded_rows"] = 174
    assert counted.by_hive(stats).in_steps == 174
    nothing = {"scheduler": {"extends": 0, "decode_steps": 0, "running_mean": 0.0}}
    assert counted.by_hive(nothing).running_mean is None


def test_steps_are_taken_once() -> None:
    steps = Steps()
    steps.add(0.5, 3, 1)
    steps.add(0.25, 2, 0)
    assert steps.taken() == Steps([0.5, 0.25], 5, 1)
    assert steps.taken() == Steps()
