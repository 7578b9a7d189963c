"""Figures of the runtime alone: the speed of transitions, the size of live states, the time of a fork."""

from __future__ import annotations

import gc
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hive_frontend.client.contract import Request
from hive_frontend.compiler import process
from hive_frontend.compiler.process import Waiting
from hive_frontend.operations import fork
from hive_frontend.supervisors.once import Once
from hive_frontend.supervisors.state import Decision, State
from hive_frontend.supervisors.tree_of_thoughts import TreeOfThoughtsProgress

from bench.frontend import workload
from bench.frontend.report import Memory, Spread
from hive import Dialogue, TreeOfThoughts, agent, arun, gen
from hive.testing import FunctionModel

_LONG = 20
"""Steps of the search that transitions are counted in."""
_GENERATIONS, _BRANCHING = 4, 10
STATES = _BRANCHING**_GENERATIONS
"""States alive at once."""
MESSAGES = 100
"""In the dialogue of the state that is forked."""
_FORKS = 1000

Data = dict[str, list[int]]


async def transitions_per_s(repeats: int, *, suspends: bool) -> Spread:
    """Transitions per second of a wide and long search, a number for each repeat."""
    model = workload.model(suspends=suspends)
    wide = TreeOfThoughts(branch_at="step", branching=4, breadth=16, limit=None)
    speeds = []
    for seed in range(-1, repeats):
        model.calls.clear()
        gc.collect()
        began = time.process_time()
        result = await arun(
            workload.climb, workload.TASK, length=_LONG, model=model, supervisor=wide, seed=seed
        )
        speeds.append(result.states_fired / (time.process_time() - began))
    return Spread.of(speeds[1:])


@agent
async def carry(data: Data) -> int:
    """An agent whose states carry `data`, and a few short texts."""
    steps: list[str] = []
    while True:
        step = await gen(workload.prompt("carry", steps), name="step")
        steps.append(step)
        if not step:
            return len(data)


class _Weighed(TreeOfThoughts):
    """Ends the search when `STATES` are alive, and says what had been allocated by then."""

    allocated = 0

    def decide(self, progress: TreeOfThoughtsProgress, arrived: list[State]) -> Sequence[Decision]:
        if len(arrived) < STATES:
            return super().decide(progress, arrived)
        gc.collect()
        self.allocated, _ = tracemalloc.get_traced_memory()
        return []

    def __deepcopy__(self, memo: dict[int, Any]) -> _Weighed:
        return self  # or else the runtime's copy would know the figure


async def memory() -> Memory:
    """What live states take, with data and without."""
    data = {f"part {part}": list(range(64)) for part in range(8)}
    copies: list[Data] = []
    copying = _allocated(lambda: copies.extend(fork.copy(data, {}) for _ in range(STATES)))
    copies.clear()
    return Memory(
        states=STATES,
        bytes_per_state=await _allocated_by_search({}) / STATES,
        bytes_per_state_with_data=await _allocated_by_search(data) / STATES,
        data_bytes=copying / STATES,
    )


def _allocated(act: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        act()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


async def _allocated_by_search(data: Data) -> int:
    """Bytes that the states of a search take, the expanded ones that they come from included."""

    def answer(request: Request) -> str:
        # A scripted model remembers all requests, which are no part of the states.
        model.calls.clear()
        return f"step {request.sample}"

    model = FunctionModel(answer)
    weighed = _Weighed(branch_at="step", branching=_BRANCHING, breadth=STATES, limit=None)
    gc.collect()
    tracemalloc.start()
    try:
        await arun(carry, data, model=model, supervisor=weighed, seed=1)
    finally:
        tracemalloc.stop()
    assert weighed.allocated, "the search never had all states alive"
    return weighed.allocated


@agent
async def talk() -> None:
    """An agent whose dialogue grows without end."""
    dialogue = Dialogue(system="You are terse.")
    while True:
        dialogue.user(f"Question {len(dialogue)}: what comes next?")
        await gen(dialogue, name="answer")


class _Caught(Once):
    """Ends the run in the state whose dialogue has `MESSAGES` messages."""

    waiting: Waiting | None = None

    def fire(self) -> Iterable[Decision]:
        return [] if self.waiting else super().fire()

    def commit(self, state: State) -> None:
        super().commit(state)
        waiting = state.waiting
        if waiting is not None and len(waiting.frames[-1].variables["dialogue"]) == MESSAGES:
            self.waiting = waiting

    def __deepcopy__(self, memo: dict[int, Any]) -> _Caught:
        return self


async def fork_us(repeats: int) -> Spread:
    """Microseconds of a fork as the runtime makes it, of a state taken from a run."""
    caught = _Caught()
    model = FunctionModel(lambda request: f"Answer number {len(request.messages)}.")
    await arun(talk, model=model, supervisor=caught)
    waiting = caught.waiting
    assert waiting is not None
    copy = process.fork_branch(waiting, {})
    assert copy.frames[-1].variables["dialogue"] is not waiting.frames[-1].variables["dialogue"]
    assert copy.frames[-1].variables == waiting.frames[-1].variables
    times = timeit.repeat(
        lambda: process.fork_branch(waiting, {}), timer=time.process_time, number=_FORKS, repeat=repeats
    )
    return Spread.of([1e6 * seconds / _FORKS for seconds in times])
