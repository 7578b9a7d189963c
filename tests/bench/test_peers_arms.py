"""The arms of the comparison with peers: whoever writes the game, its requests are the same."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from bench.game24.methods import Method, Shape
from bench.harness.statistics import rotated
from bench.peers.arms import ARM_NAMES, ARMS_OF, SERVERS, WORKLOADS, arms_of, is_peer
from bench.peers.workers import worker
from examples.game24.puzzles import puzzles
from tests.bench.peers_server import bodies, stand_in

SHAPE = Shape(branching=4, breadth=2, votes=2)
REQUESTS = {Method.TOT: 4 + 8 + 8 + 2 * (4 + 8), Method.BEST_OF_N: 3 * (20 // 3)}


@pytest.mark.parametrize(
    ("method", "by_hand"),
    [(Method.TOT, "asyncio"), (Method.TOT, "langgraph"), (Method.BEST_OF_N, "asyncio")],
)
async def test_programs_by_hand_ask_and_find_what_the_frontends_do(method: Method, by_hand: str) -> None:
    if by_hand == "langgraph":
        pytest.importorskip("langgraph", reason="needs langgraph (it comes with hive[bench])")
    outcomes = Counter[bool]()
    async with stand_in() as server:
        ours, theirs = worker("stock", server.url, SHAPE), worker(by_hand, server.url, SHAPE)  # type: ignore[arg-type]
        # Easy ones among them: some are to be solved.
        for puzzle in (*puzzles(0, 6), *puzzles(900, 903)):
            solved = await ours.play(puzzle, method, 5 + puzzle.rank)
            asked = bodies(server)
            assert len(asked) == REQUESTS[method]
            assert await theirs.play(puzzle, method, 5 + puzzle.rank) == solved
            assert bodies(server) == asked
            outcomes[solved] += 1
        ours_taken, theirs_taken = ours.steps.taken(), theirs.steps.taken()
        for each in (ours, theirs):
            await each.aclose()
    assert outcomes[True]
    assert outcomes[False]
    assert len(ours_taken.latencies_s) == len(theirs_taken.latencies_s)
    assert ours_taken.generated == theirs_taken.generated == 3 * len(ours_taken.latencies_s)


async def test_samples_of_a_state_in_one_request() -> None:
    async with stand_in() as server:
        together = worker("n_k", server.url, SHAPE)
        (puzzle,) = puzzles(900, 901)
        await together.play(puzzle, Method.TOT, 1)
        steps = together.steps.taken()
        asked = [json.loads(body) for body in bodies(server)]
        await together.aclose()
    # Five positions are gone on with; those after a step but the last are judged.
    assert sorted(body["sampling_params"]["n"] for body in asked) == [2] * (4 + 8) + [4] * 5
    assert all("sampling_seed" not in body["sampling_params"] for body in asked)
    assert len(steps.latencies_s) == len(asked)
    assert steps.generated == 3 * REQUESTS[Method.TOT]


async def test_on_a_server_without_hive_nobody_says_who_asks() -> None:
    async with stand_in() as server:
        stock = worker("stock", server.url, SHAPE)
        await stock.play(puzzles(900, 901)[0], Method.MCTS, 1)
        await stock.aclose()
        assert all("custom_params" not in body for body in bodies(server))


def test_every_workload_has_hive_and_stock_servers() -> None:
    assert set(ARMS_OF) == set(WORKLOADS)
    assert set(SERVERS) == set(ARM_NAMES)
    for workload in WORKLOADS:
        assert {"hive", "stock", "ngram"} <= set(ARMS_OF[workload])
    assert arms_of("rtl", ["langgraph", "stock", "hive"]) == ["hive", "stock"]
    assert [arm for arm in ARM_NAMES if is_peer(arm)] == ["stock", "ngram", "asyncio", "langgraph", "n_k"]


def test_who_begins_moves_on() -> None:
    arms = arms_of("mcts", ["hive", "stock", "ngram"])
    assert [rotated(arms, turn) for turn in range(3)] == [
        ["hive", "stock", "ngram"],
        ["stock", "ngram", "hive"],
        ["ngram", "hive", "stock"],
    ]
    assert rotated(arms, 3) == arms
    assert rotated([], 1) == []
