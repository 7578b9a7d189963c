"""The arms against each other: interleaved, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import gc
import time
from typing import get_args

from hive_frontend.client.contract import Request

from bench.frontend.arms import ArmName, Search, searches
from bench.frontend.report import Arm, Spread
from bench.frontend.workload import CALLS, Found, model
from bench.harness.statistics import rotated
from hive.testing import FunctionModel

ARM_NAMES: tuple[ArmName, ...] = get_args(ArmName)
BLOCK_S = 0.1
"""How long an arm runs before the next one gets its turn, about."""


class Unequal(Exception):
    """The arms do not do the same, so their times say nothing."""


class Comparison:
    """Times of all arms on one kind of model."""

    def __init__(self, *, suspends: bool) -> None:
        self.suspends = suspends
        self.seconds: dict[ArmName, list[float]] = {name: [] for name in ARM_NAMES}
        """Seconds per search, a number for each repeat."""
        self._model = model(suspends=suspends)
        self._searches = searches(self._model)
        self._counts: dict[ArmName, int] = {}

    async def warm_up(self) -> None:
        """See that the arms do the same, and how many searches fill a block.

        Raises `Unequal` when an arm makes other requests than Hive, or finds something else.
        """
        expected: tuple[list[Found], list[Request]] | None = None
        for name in ARM_NAMES:
            found, calls = await observed(self._searches[name], self._model, 1)
            expected = expected or (found, calls)
            if len(calls) != CALLS or calls != expected[1]:
                raise Unequal(f"{name} makes other requests than hive")
            if found != expected[0]:
                raise Unequal(f"{name} finds {found[0]}, hive {expected[0][0]}")
            began = time.process_time()
            for seed in range(3):
                await self._searches[name](seed)
            self._counts[name] = max(3, round(3 * BLOCK_S / (time.process_time() - began)))

    async def repeat(self, turn: int) -> None:
        """Time every arm once; `turn` rotates which comes first."""
        best: set[Found] = set()
        for name in rotated(ARM_NAMES, turn):
            search, count = self._searches[name], self._counts[name]
            self._model.calls.clear()
            gc.collect()
            began = time.process_time()
            for _ in range(count):
                found = await search(turn)
            self.seconds[name].append((time.process_time() - began) / count)
            if len(self._model.calls) != count * CALLS:
                raise Unequal(f"{name} made {len(self._model.calls)} calls instead of {count * CALLS}")
            best.add(found[0])
        if len(best) > 1:
            raise Unequal(f"the arms found different things: {best}")

    def arm(self, name: ArmName) -> Arm:
        return Arm(
            name=name,
            suspending=self.suspends,
            searches_per_repeat=self._counts[name],
            ms_per_search=Spread.of([1e3 * each for each in self.seconds[name]]),
        )

    def ratio(self, slower: ArmName, faster: ArmName) -> Spread:
        """Time of one arm over that of another, repeat by repeat."""
        return Spread.of_ratio(self.seconds[slower], self.seconds[faster])


async def observed(search: Search, model: FunctionModel, seed: int) -> tuple[list[Found], list[Request]]:
    """What a search finds, and its requests, in the order of states and samples."""
    model.calls.clear()
    found = await search(seed)
    calls = sorted(call._replace(session="") for call in model.calls)
    return found, calls
