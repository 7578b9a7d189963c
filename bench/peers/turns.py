"""Turns: one arm plays the tasks of one block, on a server whose caches are cold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from bench.game24.methods import Method
from bench.game24.puzzles import Puzzle
from bench.logits_cache.client import FLUSH_PATIENCE_S, BenchError
from bench.peers.arms import ArmName
from bench.peers.counters import Counters, read
from bench.peers.memory import ServerMemory
from bench.peers.steps import Steps
from bench.peers.workers import Score, Worker
from bench.rtl_repair.bugs import Bug


class ServerInfo(NamedTuple):
    """What a server says of itself."""

    draft_tokens: int | None
    """Tokens that it has the model verify in each pass of speculative decoding; None without that."""
    model_bytes: int | None
    """Weights, KV pool and graphs, by its own account: on the device, or on a CPU in the host's memory."""


class Server:
    """One server, as the bench sees it from outside."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(120), trust_env=False)
        self.memory = ServerMemory(url)

    async def flush(self) -> None:
        """Make its caches cold: KV, grammars, and on Hive's server the Logits Cache."""
        answer = await self._http.post("/flush_cache", params={"timeout": FLUSH_PATIENCE_S})
        if answer.status_code != 200:
            raise BenchError(f"flush_cache: HTTP {answer.status_code}: {answer.text[:500]}")

    async def counters(self) -> Counters | None:
        """What it computed so far; None if it was started without `--enable-metrics`."""
        answer = await self._http.get("/metrics", follow_redirects=True)
        if answer.status_code != 200:
            return None
        counted, stats = read(answer.text), await self._http.get("/hive/stats")
        return counted.by_hive(stats.json()) if stats.status_code == 200 else counted

    async def info(self) -> ServerInfo:
        """What it says of itself.

        Raises:
            BenchError: when nobody answers there as an SGLang server does.
        """
        answer = await self._http.get("/server_info")
        if answer.status_code != 200:
            raise BenchError(f"{self.url} does not answer as an SGLang server: HTTP {answer.status_code}")
        info = answer.json()
        sizes = [
            [memory["weight"], memory["kvcache"], *memory["graph"].values()]
            for state in info["internal_states"]
            if (memory := state.get("memory_usage"))
        ]
        return ServerInfo(
            draft_tokens=info.get("speculative_num_draft_tokens") or None,
            model_bytes=round(2**30 * sum(map(sum, sizes))) if sizes else None,
        )

    async def aclose(self) -> None:
        """Close the connection."""
        await self._http.aclose()


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
    """What an arm made of a block."""

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

    Raises:
        BenchError: when the server does not answer as it must; ModelError for the same, and errors of httpx
            and aiohttp, or a group of these: one that several tasks of the turn may have met.
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
    """Do the tasks."""
    if isinstance(tasks, Game):
        return await _play(worker, tasks)
    return await _repair(worker, tasks)


async def _play(worker: Worker, game: Game) -> Score:
    places = asyncio.Semaphore(game.at_once)

    async def one(puzzle: Puzzle) -> bool:
        async with places:
            return await worker.play(puzzle, game.method, game.seed + puzzle.rank)

    async with asyncio.TaskGroup() as tasks:
        games = [tasks.create_task(one(puzzle)) for puzzle in game.puzzles]
    return Score(len(games), sum(each.result() for each in games))


async def _repair(worker: Worker, repairs: Repairs) -> Score:
    async with asyncio.TaskGroup() as tasks:
        sessions = [
            tasks.create_task(_session(worker, bugs, repairs, repairs.seed + number))
            for number, bugs in enumerate(repairs.sessions)
        ]
    scores = [session.result() for session in sessions]
    return Score(sum(score.tasks for score in scores), sum(score.solved for score in scores))


async def _session(worker: Worker, bugs: Sequence[Bug], repairs: Repairs, seed: int) -> Score:
    return await worker.repair(bugs, patches=repairs.patches, lookups=repairs.lookups, seed=seed)
