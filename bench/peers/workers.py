"""A program at work on the tasks of a workload, with its connections and its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from bench.game24.methods import Method, Shape
from bench.game24.methods import play as search
from bench.peers import by_hand
from bench.peers.arms import SERVERS, ArmName
from bench.peers.sglang_client import Draw, SglangClient
from bench.peers.steps import MeteredModel, Steps
from bench.rtl_repair.methods import session
from examples.by_agent import ByAgent
from examples.game24.players import PROPOSER, VALUER, Player, at_server
from examples.game24.puzzles import Puzzle
from examples.rtl_repair.bugs import Bug
from hive import Client, HttpClient

PATIENCE_S = 180.0
"""How long an answer of a peer's server may take before the arm is given up, so that the others need not wait."""


class Score(NamedTuple):
    """The outcome of some tasks."""

    tasks: int
    solved: int


class Worker(ABC):
    """An arm at work on one server; its connections stay open from task to task."""

    def __init__(self) -> None:
        self.steps = Steps()
        """Of all tasks, until they are taken."""

    @abstractmethod
    async def play(self, puzzle: Puzzle, method: Method, seed: int) -> bool:
        """Whether a search finds a solution of a puzzle."""

    async def repair(self, bugs: Sequence[Bug], *, patches: int, lookups: int, seed: int) -> Score:
        """A session over some bugs that ends when so many patches were tried.

        Raises `NotImplementedError` for programs that only play games.
        """
        raise NotImplementedError

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections."""


class FrontendWorker(Worker):
    """The programs as they are written with Hive's frontend."""

    def __init__(self, url: str, shape: Shape, player: Client) -> None:
        super().__init__()
        self._shape = shape
        self._player = MeteredModel(player, self.steps)
        patcher = HttpClient(url, model="patcher")
        self._repairer = MeteredModel(ByAgent({"Patcher": patcher}, HttpClient(url)), self.steps)

    async def play(self, puzzle: Puzzle, method: Method, seed: int) -> bool:
        result = await search(
            puzzle, method=method, shape=self._shape, player=Player.ROLES, model=self._player, seed=seed
        )
        return result.best is not None

    async def repair(self, bugs: Sequence[Bug], *, patches: int, lookups: int, seed: int) -> Score:
        _, outcome = await session(bugs, self._repairer, rounds=patches, lookups=lookups, seed=seed)
        return Score(outcome.bugs, len(outcome.repairs))

    async def aclose(self) -> None:
        for client in (self._player, self._repairer):
            await client.aclose()


class HandWorker(Worker):
    """The game on asyncio; `together` asks for samples of one state in one request."""

    def __init__(self, url: str, shape: Shape, *, together: bool = False) -> None:
        super().__init__()
        self._client = SglangClient(url, self.steps)
        self._draw: Draw = self._client.draw_together if together else self._client.draw_singly
        self._shape = shape

    async def play(self, puzzle: Puzzle, method: Method, seed: int) -> bool:
        return await by_hand.Player(self._draw, method, self._shape, seed).search(puzzle.numbers)

    async def aclose(self) -> None:
        await self._client.aclose()


class LangGraphWorker(HandWorker):
    """Tree of Thoughts on LangGraph."""

    def __init__(self, url: str, shape: Shape) -> None:
        # Not installed with Hive, and needed by nothing else.
        from bench.peers.on_langgraph import tree_of_thoughts

        super().__init__(url, shape)
        self._search = tree_of_thoughts(self._draw, shape)

    async def play(self, puzzle: Puzzle, method: Method, seed: int) -> bool:
        if method is not Method.TOT:
            raise ValueError(f"{method} is not written on LangGraph")
        return await self._search(puzzle.numbers, seed)


def worker(arm: ArmName, url: str, shape: Shape) -> Worker:
    """The worker of an arm, on its server."""
    match arm:
        case "asyncio" | "asyncio_on_hive":
            return HandWorker(url, shape)
        case "n_k":
            return HandWorker(url, shape, together=True)
        case "langgraph" | "langgraph_on_hive":
            return LangGraphWorker(url, shape)
    return FrontendWorker(url, shape, _player(arm, url, shape))


def _player(arm: ArmName, url: str, shape: Shape) -> Client:
    if SERVERS[arm] == "hive":
        # All workloads of the game are searches.
        return at_server(url, Player.ROLES, distinct=arm == "hive_distinct")
    # No sample goes ahead of the others: these servers have no cache that could answer them from its distributions.
    return ByAgent({role: HttpClient(url, model=role, timeout_s=PATIENCE_S) for role in (PROPOSER, VALUER)})
