"""Turns: one arm plays the tasks of one block, on a server whose caches are cold."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.game24.methods import Method
from bench.harness.client import BenchError, Client, together
from bench.harness.memory import ServerMemory
from bench.peers.arms import ArmName
from bench.peers.counters import Counters, read
from bench.peers.steps import Steps
from bench.peers.workers import Score, Worker
from examples.game24.puzzles import Puzzle
from examples.rtl_repair.bugs import Bug


class ServerInfo(NamedTuple):
    """What a server says of itself."""

    draft_tokens: int | None
    """Tokens that it has the model verify in each pass of speculative decoding; None without that."""
    model_bytes: int | None
    """Weights, KV pool and graphs, by its own account: on the device, or on a CPU in the host's memory."""


class Server(Client):
    """One server, as the bench sees it from outside."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.memory = ServerMemory(url)

    async def counters(self) -> Counters | None:
        """What it computed so far; None if it was started without `--enable-metrics`."""
        status, metrics = await self.call("GET", "/metrics")
        if status != 200:
            return None
        status, stats = await self.call("GET", "/hive/stats")
        return read(metrics).by_hive(json.loads(stats)) if status == 200 else read(metrics)

    async def info(self) -> ServerInfo:
        """What it says of itself; raises `BenchError` when it is not an SGLang server."""
        status, text = await self.call("GET", "/server_info")
        if status != 200:
            raise BenchError(f"{self.url} does not answer as an SGLang server: HTTP {status}")
        info = json.loads(text)
        sizes = [
            [memory["weight"], memory["kvcache"], *memory["graph"].values()]
            for state in info["internal_states"]
            if (memory := state.get("memory_usage"))
        ]
        return ServerInfo(
            draft_tokens=info.get("speculative_num_draft_tokens") or None,
            model_bytes=round(2**30 * sum(map(sum, sizes))) if sizes else None,
        )


class Game(NamedTuple):
    """Puzzles to search."""

    method: Method
    puzzles: Sequence[Puzzle]
    at_once: int
    seed: int


class Repairs(NamedTuple):
    """Sessions of repairs at once, each over bugs of a design of its own."""

    sessions: Sequence[Sequence[Bug]]
    patches: int
    """Of each session, after which it ends."""
    lookups: int
    """Looks at things before each patch, at the most."""
    seed: int


Tasks = Game | Repairs


@dataclass(frozen=True)
class Turn:
    """The outcome of a block for an arm."""

    arm: ArmName
    block: int
    score: Score
    wall_s: float
    client_cpu_s: float
    """Of the process that runs the arm's program and asks the server: this one, in which nothing else runs."""
    steps: Steps
    computed: Counters | None
    host_bytes: int | None
    """At the end of the turn."""
    device_bytes: int | None
    server: ServerInfo


async def take_turn(arm: ArmName, worker: Worker, server: Server, tasks: Tasks, block: int) -> Turn:
    """Flush, work, and read the meters.

    Raises `BenchError` when the server does not answer as it must; ModelError for the same, and errors of httpx and
    aiohttp, or a group of these: one that several tasks of the turn may have met.
    """
    await server.flush()
    before = await server.counters()
    worker.steps.taken()
    began, cpu_began = time.perf_counter(), time.process_time()
    score = await work(worker, tasks)
    wall_s, client_cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    after = await server.counters()
    return Turn(
        arm=arm,
        block=block,
        score=score,
        wall_s=wall_s,
        client_cpu_s=client_cpu_s,
        steps=worker.steps.taken(),
        computed=None if before is None or after is None else after - before,
        host_bytes=server.memory.host_bytes(),
        device_bytes=server.memory.device_bytes(),
        server=await server.info(),
    )


async def work(worker: Worker, tasks: Tasks) -> Score:
    if isinstance(tasks, Game):
        return await _play(worker, tasks)
    scores = await together(
        worker.repair(bugs, patches=tasks.patches, lookups=tasks.lookups, seed=tasks.seed + number)
        for number, bugs in enumerate(tasks.sessions)
    )
    return Score(sum(score.tasks for score in scores), sum(score.solved for score in scores))


async def _play(worker: Worker, game: Game) -> Score:
    places = asyncio.Semaphore(game.at_once)

    async def one(puzzle: Puzzle) -> bool:
        async with places:
            return await worker.play(puzzle, game.method, game.seed + puzzle.rank)

    solved = await together(map(one, game.puzzles))
    return Score(len(solved), sum(solved))
