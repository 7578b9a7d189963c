"""Part A: how long workflows take, by arm. Every problem is worked on by all arms in turn, each from cold caches."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import httpx
from pydantic import BaseModel
from rich.console import Console

from bench.harness.client import BenchError, Client
from bench.harness.command import Pace
from bench.harness.statistics import rotated
from bench.kv_segments.arms import ArmName, Call, Choreographed, Concatenated, Corrector, Warm
from bench.kv_segments.encoding import Encoding
from examples.choreography.problems import problems
from examples.choreography.workflows import iterative_debate, parallel_debate, tree_of_thoughts

WorkloadName = Literal["tot", "parallel", "iterative"]
WORKLOADS: tuple[WorkloadName, ...] = get_args(WorkloadName)
TEMPERATURE = 0.7
"""The paper's (appendix A)."""
WARM_UP_TOKENS = 8
"""Of each message in the runs before the first that counts."""


class Amounts(BaseModel, frozen=True):
    """How much is run."""

    problems: int
    repetitions: int
    branches: int
    votes: int
    agents: int
    rounds: int
    """Of both debates."""
    answer_tokens: tuple[int, int]
    """The least and the most of a message; each problem has one length for all of its messages but verdicts."""


class SpeedSettings(Amounts, frozen=True):
    """What to run."""

    workloads: Sequence[WorkloadName]
    seed: int
    warm_up: bool = True
    """Whether every arm does everything once before it counts; on a GPU, kernels are compiled then."""

    def length(self, problem: int) -> int:
        """Tokens of the messages about a problem."""
        low, high = self.answer_tokens
        return random.Random(f"{self.seed} {problem}").randint(low, high)


@dataclass(frozen=True)
class Contestant:
    """An arm with its settings."""

    arm: ArmName
    corrector: str | None
    """Name of the choreographed arm's."""
    make: Callable[[], Choreographed | Concatenated]


@dataclass(frozen=True)
class Turn:
    """One workflow on one problem by one arm."""

    workload: WorkloadName
    arm: ArmName
    corrector: str | None
    problem: int
    repetition: int
    wall_s: float
    calls: Sequence[Call]


def contestants(
    arms: Sequence[ArmName],
    correctors: Mapping[str, Corrector],
    hive: Client | None,
    stock: Client | None,
    encoding: Encoding,
) -> list[Contestant]:
    """Those whose server is there; the choreographed arm once for each corrector."""
    found: list[Contestant] = []
    for arm in arms:
        client = stock if arm == "stock" else hive
        if client is None:
            continue
        if arm == "choreographed":
            found += [
                Contestant(arm, name, partial(Choreographed, client, encoding, corrector=corrector))
                for name, corrector in correctors.items()
            ]
        elif arm == "warm":
            found.append(Contestant(arm, None, partial(Warm, client, encoding)))
        else:
            found.append(
                Contestant(arm, None, partial(Concatenated, client, encoding, cached=arm != "naive"))
            )
    return found


async def workflow(
    io: Choreographed | Concatenated,
    workload: WorkloadName,
    problem: str,
    settings: SpeedSettings,
    max_tokens: int,
    seed: int,
) -> None:
    """Run one; all calls are made whatever is answered."""
    program: Callable[..., Awaitable[str]]
    shape: dict[str, Any]
    match workload:
        case "tot":
            program = tree_of_thoughts
            shape = {"branches": settings.branches, "votes": settings.votes}
        case "parallel":
            program = parallel_debate
            shape = {"agents": settings.agents, "rounds": settings.rounds}
        case "iterative":
            program = iterative_debate
            shape = {"rounds": settings.rounds, "stop_early": False}
    await program(io, problem, **shape, max_tokens=max_tokens, temperature=TEMPERATURE, seed=seed)


@dataclass
class SpeedSession:
    """What was measured so far."""

    settings: SpeedSettings
    console: Console
    turns: list[Turn] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    async def run(self, crew: Sequence[Contestant], deadline: float | None) -> None:
        """All problems, or as many as there is time for, but at least one. An arm that fails is left out, with its
        turns and the reason.

        ``deadline`` is by `time.monotonic`.
        """
        going = list(crew)
        texts = [
            problem.text for problem in problems(max(1, self.settings.problems), seed=self.settings.seed)
        ]
        for each in list(going) if self.settings.warm_up else ():
            self.console.print(f"warming up: {_label(each)}", highlight=False)
            for workload in self.settings.workloads:
                if not await self._attempt(
                    going, each, self._work(each, workload, texts[0], WARM_UP_TOKENS, 0)
                ):
                    break
        pace = Pace(deadline, at_least_one=True)
        rounds = [
            (number, text, repetition)
            for repetition in range(self.settings.repetitions)
            for number, text in enumerate(texts)
        ]
        for place, (number, text, repetition) in enumerate(rounds):
            if not pace.goes_on():
                self.left_out[f"speed, last {len(rounds) - place} of {len(rounds)} problems"] = (
                    "there was no time"
                )
                break
            for column, workload in enumerate(self.settings.workloads):
                for each in rotated(list(going), place + column):
                    await self._attempt(going, each, self._turn(each, workload, number, text, repetition))

    async def _turn(
        self, each: Contestant, workload: WorkloadName, number: int, text: str, repetition: int
    ) -> None:
        length = self.settings.length(number)
        wall_s, calls = await self._work(each, workload, text, length, self.settings.seed + number)
        self.turns.append(Turn(workload, each.arm, each.corrector, number, repetition, wall_s, calls))
        decodes = [call.ttft_s for call in calls if call.decode]
        self.console.print(
            f"{workload}, problem {number + 1}: {_label(each)} {wall_s:.1f} s, "
            f"TTFT {1e3 * sum(decodes) / len(decodes):.0f} ms",
            highlight=False,
        )

    async def _work(
        self, each: Contestant, workload: WorkloadName, text: str, length: int, seed: int
    ) -> tuple[float, list[Call]]:
        io = each.make()
        await io.begin()
        try:
            began = time.perf_counter()
            await workflow(io, workload, text, self.settings, length, seed)
            took = time.perf_counter() - began - io.beside_s
        except (BenchError, httpx.HTTPError):
            # What went wrong first is what counts.
            with contextlib.suppress(BenchError, httpx.HTTPError):
                await io.end()
            raise
        await io.end()
        return took, io.calls

    async def _attempt(self, going: list[Contestant], each: Contestant, job: Awaitable[object]) -> bool:
        """Whether it went well; otherwise the arm is out."""
        try:
            await job
        except (BenchError, httpx.HTTPError) as error:
            reason = str(error) or repr(error)
            going.remove(each)
            self.turns = [
                turn for turn in self.turns if (turn.arm, turn.corrector) != (each.arm, each.corrector)
            ]
            self.left_out[_label(each)] = reason
            self.console.print(f"{_label(each)} left out: {reason}", highlight=False, markup=False)
            return False
        return True


def _label(each: Contestant) -> str:
    corrected = each.corrector not in (None, "none")
    return f"{each.arm}, {each.corrector}" if corrected else each.arm
