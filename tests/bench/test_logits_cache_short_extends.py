"""A few new tokens behind many cached ones: what is asked of whom, and what becomes of the times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bench.logits_cache.arms import Arm
from bench.logits_cache.client import Client, Timing
from bench.logits_cache.short_extends import NEW_TOKENS, Case, Texts, cases, measure_short_extends

TEXT = [7 * n % 1009 for n in range(3000)]


class StandIn(Client):
    """Takes a step of 10 ms for each token, and as many as it is told for the first one."""

    def __init__(self, first_steps: float) -> None:
        super().__init__("http://stand-in")
        self.first_s = first_steps / 100
        self.asked: list[tuple[tuple[int, ...], str | None]] = []
        self.flushes = 0

    async def generate(
        self, input_ids: Sequence[int], params: dict[str, Any], adapter: str | None = None
    ) -> Timing:
        self.asked.append((tuple(input_ids), adapter))
        tokens = params["max_new_tokens"]
        return Timing(self.first_s + (tokens - 1) / 100, self.first_s, tokens, 0, cached=900)

    async def flush(self) -> None:
        self.flushes += 1


def test_both_servers_get_the_same_and_nothing_of_it_twice() -> None:
    hive, stock = StandIn(1.5), StandIn(6)
    texts = Texts(TEXT, 4, cached=100)
    measured = measure_short_extends(
        Arm("stepwise", hive), Arm("stock", stock), texts, [1, 4], "proposer", seconds=0.0
    )
    found = asyncio.run(measured)
    assert [Case(each.new_tokens, each.at_once) for each in found] == cases([1, 4])
    assert all(each.requests == 2 * each.at_once for each in found)
    assert all(each.hive_in_steps == pytest.approx(1.5) for each in found)
    assert all(each.stock_in_steps == pytest.approx(6) for each in found)
    assert all(each.speedup == pytest.approx(4) for each in found)
    assert all((each.cached_tokens, each.adapter) == (900, "proposer") for each in found)
    assert all(each.hive_step_ms == pytest.approx(10) for each in found)
    assert hive.asked == stock.asked
    assert (hive.flushes, stock.flushes) == (1, 1)
    assert all(adapter == "proposer" for _, adapter in hive.asked)
    prompts, behind = hive.asked[:4], hive.asked[4:]
    assert [ids for ids, _ in prompts] == texts.prompts
    assert sorted({len(ids) - 100 for ids, _ in behind}) == list(NEW_TOKENS)
    assert len(behind) == 3 * len(NEW_TOKENS) * (1 + 4), "a round before those that count"
    # Not even the first new token was ever seen behind its prompt.
    begun = [ids[:101] for ids, _ in behind]
    assert len(set(begun)) == len(begun)
    assert {ids[:100] for ids in begun} == set(texts.prompts)


def test_text_that_is_too_short() -> None:
    with pytest.raises(ValueError, match="3000 tokens are too few for 2000 prompts"):
        Texts(TEXT, 2000)
    texts = Texts([1, 2, 1, 2, 1, 2], 1, cached=3)
    for _ in range(2):
        texts.behind(0, 2)
    with pytest.raises(ValueError, match="too few different tokens"):
        texts.behind(0, 2)
