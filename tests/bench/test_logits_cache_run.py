"""Blocks against a stand-in for the servers: who gets which request when, and what the report makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.logits_cache.analysis import Interval
from bench.logits_cache.arms import Arm
from bench.logits_cache.client import Client, Timing
from bench.logits_cache.plots import write_plots
from bench.logits_cache.report import Row, crossings, entropy_points, rows_of, table
from bench.logits_cache.run import BlockResult, run_block
from bench.logits_cache.workloads import Block, random_prompts

PROMPTS = random_prompts(1000, 4)


class StandIn(Client):
    """Answers at once, step-wise requests of a second sample from its 'cache'; remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__("http://stand-in")
        self.events: list[tuple[str, str, int]] = []
        self.in_flight = self.most_in_flight = 0

    async def generate(self, input_ids: Sequence[int], params: dict[str, Any]) -> Timing:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        tag = params.get("custom_params", {}).get("hive", {})
        self.events.append((tag.get("replay", "stock"), tag.get("state", ""), tag.get("sample", -1)))
        await asyncio.sleep(0)
        self.in_flight -= 1
        if tag.get("replay") == "stepwise" and tag["sample"] > 0:
            # The third sample is served whole.
            return Timing(0.6, 0.2, 10, 5) if tag["sample"] == 1 else Timing(0.01, 0.01, 10, 10)
        return Timing(1.1, 0.2, 10, 0)

    async def flush(self) -> None:
        self.events.append(("flush", "", -1))

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/hive/stats"
        replayed = sum(mode == "stepwise" and sample > 0 for mode, _, sample in self.events)
        return {
            "logits_cache": {
                "tokens_replayed": replayed,
                "replay_seconds": replayed / 4,
                "nodes": 3,
                "bytes": 300,
            }
        }


def measured(concurrency: int, temperature: float = 0.7) -> tuple[BlockResult, StandIn, StandIn]:
    hive, stock = StandIn(), StandIn()
    arms = [Arm("stock", stock), Arm("off", hive), Arm("stepwise", hive)]
    block = Block("resample", temperature, concurrency, 10, states=4, samples=3)
    result = asyncio.run(run_block(block, arms, PROMPTS, turn=0))
    result.entropy = Interval(1.0, 1.2)
    return result, hive, stock


def test_every_arm_gets_the_same_requests() -> None:
    result, _, _ = measured(1)
    keys = {(state.name, sample) for state in PROMPTS.test for sample in range(3)}
    assert {arm: set(samples) for arm, samples in result.samples.items()} == {
        "stock": keys,
        "off": keys,
        "stepwise": keys,
    }


def test_arms_take_turns_with_cold_caches_and_the_first_one_moves_on() -> None:
    _, hive, stock = measured(1)
    name = [state.name for state in PROMPTS.test]
    turns: list[tuple[str, str]] = []
    for mode, state, sample in hive.events:
        if sample == 0:
            turns.append((mode, state))
    # The rotation is stock-off-stepwise, off-stepwise-stock, stepwise-stock-off, and again from the start.
    assert turns == [
        ("off", name[0]),
        ("stepwise", name[0]),
        ("off", name[1]),
        ("stepwise", name[1]),
        ("stepwise", name[2]),
        ("off", name[2]),
        ("off", name[3]),
        ("stepwise", name[3]),
    ]
    for server, turns_of_server in ((hive, 8), (stock, 4)):
        starts = [index for index, event in enumerate(server.events) if event[0] == "flush"]
        assert len(starts) == turns_of_server
        assert starts[:3] == [0, 4, 8]


def test_samples_of_a_state_follow_one_another() -> None:
    _, hive, _ = measured(2)
    assert hive.most_in_flight == 2
    for state in PROMPTS.test:
        for arm in ("off", "stepwise"):
            assert [s for mode, name, s in hive.events if (mode, name) == (arm, state.name)] == [
                0,
                1,
                2,
            ]


def test_the_cache_is_counted_over_turns() -> None:
    result, _, _ = measured(1)
    assert result.cache.tokens_replayed == 8
    assert result.cache.replay_seconds == 2.0
    assert (result.cache.nodes, result.cache.bytes) == (12, 1200)


def test_rows() -> None:
    result, _, _ = measured(1)
    stock, off, stepwise = rows_of(result)
    assert (stock.speedup_mean, off.speedup_mean) == (1.0, 1.0)
    assert stepwise.hit_ratio == pytest.approx(0.5)
    assert stepwise.hit_ratio_counted == pytest.approx(0.25)
    assert stepwise.excluded == 4
    assert stepwise.speedup_mean == pytest.approx((1 + 1.1 / 0.6) / 2)
    assert stepwise.resamples.requests == 4
    assert stepwise.resamples.speedup_mean == pytest.approx(1.1 / 0.6)
    assert stepwise.resamples.hit_ratio == 0.5
    assert stepwise.all_requests.achieved == pytest.approx(3.3 / 1.71)
    # A step takes 0.1 s, and the prompt 0.1 s: without the replayed half a request takes 0.6 s.
    assert stepwise.resamples.achieved_over_ideal == pytest.approx(1.0)
    assert stepwise.entropy_mean == pytest.approx(1.1)


def test_a_greedy_row_has_no_entropy_but_the_models() -> None:
    row = rows_of(measured(1, temperature=0.0)[0])[0]
    assert row.entropy_mean == 0
    assert row.entropy_model_mean == pytest.approx(1.1)


def rows_of_a_sweep() -> list[Row]:
    rows = [*rows_of(measured(1, 0.0)[0]), *rows_of(measured(1)[0]), *rows_of(measured(2)[0])]
    assert len(rows) == 9
    return rows


def test_speedup_against_entropy_is_of_the_lowest_concurrency() -> None:
    rows = rows_of_a_sweep()
    points = entropy_points(rows, "stepwise", "resamples")
    assert [entropy for entropy, _ in points] == pytest.approx([0.0, 1.1])
    assert [speedup for _, speedup in points] == pytest.approx([1.1 / 0.6] * 2)
    assert entropy_points(rows, "hotspot", "resamples") == []
    assert {(item.arm, item.crossing.kind) for item in crossings(rows)} == {("stepwise", "at least")}


def test_table_and_plots(tmp_path: Path) -> None:
    rows = rows_of_a_sweep()
    assert table(rows).row_count == 9
    written = write_plots(rows, tmp_path / "plots", "run")
    assert [path.name for path in written] == [
        "run-speedup.png",
        "run-hit_ratio.png",
        "run-achieved_over_ideal.png",
        "run-entropy.png",
    ]
    assert all(path.stat().st_size > 5000 for path in written)
