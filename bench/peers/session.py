"""A run: blocks of tasks, all arms in turn."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp
import httpx
from rich.console import Console

from bench.game24.methods import Method, Shape
from bench.harness.client import BenchError
from bench.harness.command import Pace
from bench.harness.statistics import rotated
from bench.peers.analysis import Ratio, ratios
from bench.peers.arms import SERVERS, ArmName, Kind, WorkloadName, arms_of
from bench.peers.report import Row, row_of
from bench.peers.turns import Game, Repairs, Server, Tasks, Turn, take_turn, work
from bench.peers.workers import Worker, worker
from bench.training.rtl import HELD_OUT
from examples.game24.puzzles import TEST_SET, Puzzle, luck, puzzles
from examples.game24.rules import numbers_of
from examples.rtl_repair.bugs import suite
from examples.rtl_repair.designs import all_designs
from hive import ModelError

WARM_UP = numbers_of((3, 4, 6))
"""What every arm plays before anything is measured: a game with a step less than those of the test set."""
BUGS_PER_SESSION = 8

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    shape: Shape
    puzzles: int
    at_once: int
    """Puzzles that an arm plays side by side before it is the next one's turn."""
    sessions: int
    patches: int
    lookups: int
    repair_blocks: int
    seed: int

    def games(self, workload: WorkloadName) -> list[Tasks]:
        """The blocks of a workload of Game of 24."""
        chosen = list(puzzles(TEST_SET.start, TEST_SET.stop))
        # Ranks go from easy to hard: the first ones would be no fair sample of them.
        random.Random(self.seed).shuffle(chosen)
        chosen = chosen[: self.puzzles]
        return [
            Game(Method(workload), chosen[begin : begin + self.at_once], self.at_once, self.seed)
            for begin in range(0, len(chosen), self.at_once)
        ]

    async def repairs(self) -> list[Tasks]:
        """The blocks of repairs. Each session of a block has a design of its own, and its bugs again and again.

        No lesson of the Patcher was about any of these designs: of others it may know the very bugs.
        """
        designs = [design for design in all_designs() if design.name in HELD_OUT]
        blocks: list[Tasks] = []
        for block in range(self.repair_blocks):
            numbers = range(block * self.sessions, (block + 1) * self.sessions)
            bugs = [
                await suite(BUGS_PER_SESSION, self.seed + number, [designs[number % len(designs)]])
                for number in numbers
            ]
            # Every bug takes at least one patch: a session never runs out of bugs before its patches are used up.
            sessions = [list(itertools.islice(itertools.cycle(each), self.patches)) for each in bugs]
            blocks.append(Repairs(sessions, self.patches, self.lookups, self.seed + numbers.start))
        return blocks

    def warm_up(self) -> Game:
        """Something small to do before the first block, with as many requests at once as later."""
        return Game(Method.TOT, [Puzzle(0, WARM_UP, luck(WARM_UP))] * self.at_once, self.at_once, self.seed)


@dataclass
class Session:
    """What was measured so far."""

    settings: Settings
    console: Console
    turns: dict[WorkloadName, dict[ArmName, list[Turn]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    async def run(
        self,
        urls: Mapping[Kind, str],
        chosen: Mapping[WorkloadName, Sequence[ArmName]],
        deadline: float | None,
    ) -> None:
        """Measure the workloads on the servers at some URLs: as many blocks as there is time for, but at least one.

        An arm that fails is left out, with the reason. Arms whose server is not there take no part.
        """
        async with contextlib.AsyncExitStack() as stack:
            servers: dict[Kind, Server] = {}
            for kind, url in urls.items():
                servers[kind] = Server(url)
                stack.push_async_callback(servers[kind].aclose)
            crew = _Crew(
                {
                    workload: [arm for arm in arms_of(workload, arms) if SERVERS[arm] in servers]
                    for workload, arms in chosen.items()
                },
                servers,
            )
            for arm in dict.fromkeys(itertools.chain.from_iterable(crew.arms.values())):
                crew.workers[arm] = worker(arm, urls[SERVERS[arm]], self.settings.shape)
                stack.push_async_callback(crew.workers[arm].aclose)
            await self._warm_up(crew)
            await self._blocks(crew, deadline)

    async def _warm_up(self, crew: _Crew) -> None:
        for arm, each in crew.workers.items():
            self.console.print(f"warming up: {arm}", highlight=False)
            if await self._attempt("warm-up", arm, work(each, self.settings.warm_up())) is None:
                for arms in crew.arms.values():
                    if arm in arms:
                        arms.remove(arm)

    async def _blocks(self, crew: _Crew, deadline: float | None) -> None:
        blocks = {
            workload: await self.settings.repairs() if workload == "rtl" else self.settings.games(workload)
            for workload in crew.arms
        }
        pace = Pace(deadline, at_least_one=True)
        for number in range(max(map(len, blocks.values()))):
            going = {workload: some for workload, some in blocks.items() if number < len(some)}
            if not pace.goes_on():
                for workload, some in going.items():
                    self.left_out[f"{workload}, last {len(some) - number} blocks"] = "there was no time"
                break
            for place, (workload, some) in enumerate(going.items()):
                for arm in rotated(crew.arms[workload], number + place):
                    await self._turn(crew, workload, arm, some[number], number)

    async def _turn(
        self, crew: _Crew, workload: WorkloadName, arm: ArmName, tasks: Tasks, number: int
    ) -> None:
        by_arm = self.turns.setdefault(workload, {})
        turn = await self._attempt(
            workload, arm, take_turn(arm, crew.workers[arm], crew.servers[SERVERS[arm]], tasks, number)
        )
        if turn is None:
            # With all its turns: others have more blocks than it.
            crew.arms[workload].remove(arm)
            by_arm.pop(arm, None)
            return
        by_arm.setdefault(arm, []).append(turn)
        self.console.print(
            f"{workload}, block {number + 1}: {arm} solves {turn.score.solved} of {turn.score.tasks} "
            f"in {turn.wall_s:.1f} s, {len(turn.steps.latencies_s)} requests",
            highlight=False,
        )

    async def _attempt(self, what: str, arm: ArmName, job: Awaitable[T]) -> T | None:
        """What comes of a job of an arm; None if it fails, which is written down."""
        failed: Exception | None = None
        try:
            return await job
        except* (BenchError, ModelError, httpx.HTTPError, aiohttp.ClientError, TimeoutError) as group:
            failed = _first(group)
        reason = str(failed) or repr(failed)
        self.left_out[f"{arm}, {what}"] = reason
        self.console.print(f"{what}: {arm} left out: {reason}", highlight=False, markup=False)
        return None

    def rows(self) -> list[Row]:
        """All arms, in the order of the tables."""
        return [
            row_of(workload, arm, turns[arm])
            for workload, turns in self.turns.items()
            for arm in arms_of(workload, list(turns))
        ]

    def ratios(self, command: str) -> list[Ratio]:
        return [each for workload, turns in self.turns.items() for each in ratios(workload, turns, command)]


@dataclass
class _Crew:
    """Who takes part in a run."""

    arms: dict[WorkloadName, list[ArmName]]
    """In their order; those that failed have gone."""
    servers: Mapping[Kind, Server]
    workers: dict[ArmName, Worker] = field(default_factory=dict)


def _first(error: BaseException) -> Exception:
    """The first of the errors in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
