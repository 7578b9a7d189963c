"""A run: blocks of tasks, all arms in turn."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import httpx
from rich.console import Console

from bench.game24.methods import Method, Shape
from bench.game24.puzzles import TEST_SET, Puzzle, luck, puzzles
from bench.game24.rules import numbers_of
from bench.logits_cache.client import BenchError
from bench.peers.analysis import Ratio, ratios
from bench.peers.arms import SERVERS, ArmName, Kind, WorkloadName, arms_of, rotated
from bench.peers.report import Row, row_of
from bench.peers.turns import Game, Repairs, Server, Tasks, Turn, take_turn, work
from bench.peers.workers import Worker, worker
from bench.rtl_repair.bugs import suite
from bench.rtl_repair.designs import all_designs
from hive import ModelError

WARM_UP = numbers_of((3, 4, 6))
"""What every arm plays before anything is measured: a game with a step less than those of the test set."""
BUGS_PER_SESSION = 8


@dataclass(frozen=True)
class Settings:
    """What to run."""

    shape: Shape
    puzzles: int
    block: int
    """Puzzles that an arm plays before it is the next one's turn."""
    at_once: int
    """Puzzles, of them."""
    sessions: int
    patches: int
    repair_blocks: int
    seed: int

    def games(self, workload: WorkloadName) -> list[Tasks]:
        """The blocks of a workload of Game of 24."""
        chosen = list(puzzles(TEST_SET.start, TEST_SET.stop))
        # Ranks go from easy to hard: the first ones would be no fair sample of them.
        random.Random(self.seed).shuffle(chosen)
        chosen = chosen[: self.puzzles]
        return [
            Game(Method(workload), chosen[begin : begin + self.block], self.at_once, self.seed)
            for begin in range(0, len(chosen), self.block)
        ]

    async def repairs(self) -> list[Tasks]:
        """The blocks of repairs. Each session of a block has a design of its own, and its bugs again and again."""
        designs = all_designs()
        blocks: list[Tasks] = []
        for block in range(self.repair_blocks):
            numbers = range(block * self.sessions, (block + 1) * self.sessions)
            bugs = [
                await suite(BUGS_PER_SESSION, self.seed + number, [designs[number % len(designs)]])
                for number in numbers
            ]
            # Every bug takes at least one patch: a session never runs out of bugs before its patches are used up.
            sessions = [list(islice(cycle(each), self.patches)) for each in bugs]
            blocks.append(Repairs(sessions, self.patches, self.seed + numbers.start))
        return blocks

    def warm_up(self, workload: WorkloadName, first: Tasks) -> Tasks:
        """Something small to do before the first block."""
        if isinstance(first, Repairs):
            return Repairs(first.sessions[:1], 1, self.seed)
        return Game(Method(workload), [Puzzle(0, WARM_UP, luck(WARM_UP))], 1, self.seed)


@dataclass
class Session:
    """What was measured so far."""

    settings: Settings
    console: Console
    turns: dict[WorkloadName, dict[ArmName, list[Turn]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    _draft_tokens: dict[Kind, int] = field(default_factory=dict)

    async def run(
        self,
        urls: Mapping[Kind, str],
        chosen: Mapping[WorkloadName, Sequence[ArmName]],
        deadline: float | None,
    ) -> None:
        """Measure the workloads on the servers at some URLs: as many blocks as there is time for, but at least one.

        An arm that fails is left out, with the reason; so are those whose server is not there.
        """
        async with contextlib.AsyncExitStack() as stack:
            servers: dict[Kind, Server] = {}
            for kind, url in urls.items():
                servers[kind] = Server(url)
                stack.push_async_callback(servers[kind].aclose)
                if draft_tokens := await servers[kind].draft_tokens():
                    self._draft_tokens[kind] = draft_tokens
            workers: dict[ArmName, Worker] = {}
            going: dict[WorkloadName, list[ArmName]] = {}
            blocks: dict[WorkloadName, list[Tasks]] = {}
            for workload, arms in chosen.items():
                going[workload] = [arm for arm in arms_of(workload, arms) if SERVERS[arm] in servers]
                blocks[workload] = (
                    await self.settings.repairs() if workload == "rtl" else self.settings.games(workload)
                )
                for arm in list(going[workload]):
                    if arm not in workers:
                        workers[arm] = worker(arm, servers[SERVERS[arm]].url, self.settings.shape)
                        stack.push_async_callback(workers[arm].aclose)
                    with self._leaving_out(workload, arm, going):
                        await work(workers[arm], self.settings.warm_up(workload, blocks[workload][0]))
            longest = 0.0
            for number in range(max(map(len, blocks.values()), default=0)):
                began = time.monotonic()
                if number and deadline is not None and began + longest > deadline:
                    for workload in blocks:
                        rest = len(blocks[workload]) - number
                        self.left_out[f"{workload}, last {rest} blocks"] = "there was no time"
                    break
                for place, workload in enumerate(blocks):
                    if number < len(blocks[workload]):
                        await self._block(
                            workload, blocks[workload][number], number, place, workers, servers, going
                        )
                longest = max(longest, time.monotonic() - began)

    async def _block(
        self,
        workload: WorkloadName,
        tasks: Tasks,
        number: int,
        place: int,
        workers: Mapping[ArmName, Worker],
        servers: Mapping[Kind, Server],
        going: dict[WorkloadName, list[ArmName]],
    ) -> None:
        for arm in rotated(going[workload], number + place):
            with self._leaving_out(workload, arm, going):
                turn = await take_turn(arm, workers[arm], servers[SERVERS[arm]], tasks, number)
                self.turns.setdefault(workload, {}).setdefault(arm, []).append(turn)
                self.console.print(
                    f"{workload}, block {number + 1}: {arm} solves {turn.score.solved} of {turn.score.tasks} "
                    f"in {turn.wall_s:.1f} s, {len(turn.steps.latencies_s)} requests",
                    highlight=False,
                )

    @contextlib.contextmanager
    def _leaving_out(
        self, workload: WorkloadName, arm: ArmName, going: dict[WorkloadName, list[ArmName]]
    ) -> Iterator[None]:
        """Leave an arm out of a workload if it fails, with all its turns: others have more blocks than it."""
        try:
            yield
        except (BenchError, ModelError, httpx.HTTPError) as error:
            going[workload].remove(arm)
            self.turns.get(workload, {}).pop(arm, None)
            reason = str(error) or repr(error)
            self.left_out[f"{workload}, {arm}"] = reason
            self.console.print(f"{workload}: {arm} left out: {reason}", highlight=False, markup=False)

    def rows(self) -> list[Row]:
        """All arms, in the order of the tables."""
        return [
            row_of(workload, arm, turns[arm], self._draft_tokens.get(SERVERS[arm]))
            for workload, turns in self.turns.items()
            for arm in arms_of(workload, list(turns))
        ]

    def ratios(self, command: str) -> list[Ratio]:
        """Hive over others."""
        return [each for workload, turns in self.turns.items() for each in ratios(workload, turns, command)]
