"""Limits hold: on tools and their threads, on requests at once, on what a budget lets through, and on waiting."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hive_frontend import (
    BestOfN,
    Budget,
    BudgetExceeded,
    Completion,
    Request,
    Session,
    ToolTimeout,
    agent,
    arun,
    gather,
    gen,
    run,
    tool,
)
from hive_frontend.operations.tool_threads import ToolThreads
from hive_frontend.testing import FunctionModel, ScriptedModel

NOBODY = ScriptedModel({})


def test_a_run_does_not_wait_for_a_tool_that_has_timed_out() -> None:
    @agent
    async def program() -> None:
        await tool(time.sleep, 30, timeout=0.05)

    began = time.monotonic()
    with pytest.raises(ToolTimeout):
        run(program, model=NOBODY)
    assert time.monotonic() - began < 5


def test_nor_does_the_end_of_the_process(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import time\n"
        "from hive_frontend import ToolTimeout, agent, run, tool\n"
        "from hive_frontend.testing import ScriptedModel\n"
        "@agent\n"
        "async def program():\n"
        "    try:\n"
        "        await tool(time.sleep, 60, timeout=0.05)\n"
        "    except ToolTimeout:\n"
        "        return 'late'\n"
        "print(run(program, model=ScriptedModel({})).value)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("late\n", 0), done.stderr


def test_stuck_threads_starve_no_other_tool() -> None:
    @agent(supervisor=BestOfN(80))
    async def program() -> str:
        await gen("q")
        try:
            await tool(time.sleep, 3.0, timeout=0.05)
        except ToolTimeout:
            return await tool(str, "ok", timeout=2)
        return "no"

    result = run(program, model=FunctionModel(lambda request: "a"), max_concurrency=100)
    assert [found.value for found in result.results] == ["ok"] * 80


async def test_waiting_for_a_thread_does_not_count() -> None:
    @agent(supervisor=BestOfN(6))
    async def program() -> str:
        await tool(time.sleep, 0.1, timeout=0.4)
        return "ok"

    session = Session(NOBODY)
    session.threads = ToolThreads(1)
    async with session:
        assert await asyncio.gather(*(program() for _ in range(6))) == ["ok"] * 6


async def test_threads_are_used_again_and_end_with_the_session() -> None:
    async with Session(NOBODY):
        (thread,) = {await tool(threading.current_thread) for _ in range(5)}
    thread.join(timeout=5)
    assert not thread.is_alive()


@pytest.mark.parametrize("blocks", [True, False])
async def test_seconds_bound_tools(blocks: bool) -> None:
    @agent
    async def program() -> str:
        await tool(time.sleep if blocks else asyncio.sleep, 20)
        return "no"

    began = time.monotonic()
    result = await arun(program, model=NOBODY, budget=Budget(seconds=0.05))
    assert time.monotonic() - began < 5
    assert [node.failure for node in result.tree.nodes] == [
        None,
        "the budget of the run is spent: 0.05 seconds",
    ]


async def test_no_tool_begins_when_the_seconds_are_over() -> None:
    ran: list[int] = []

    @agent
    async def program() -> None:
        try:
            await tool(asyncio.sleep, 5)
        except BudgetExceeded:
            await tool(ran.append, 1)

    await arun(program, model=NOBODY, budget=Budget(seconds=0.02))
    assert not ran


class Counting(ScriptedModel):
    """Counts the requests that are under way at once."""

    def __init__(self) -> None:
        super().__init__({})
        self.now = self.most = self.asked = 0

    async def complete(self, request: Request, on_text: object = None) -> Completion:
        self.now += 1
        self.asked += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.002)
        self.now -= 1
        return Completion("ten words", 10)


@agent
async def wide(width: int) -> int:
    return len(await gather(*(gen("q") for _ in range(width))))


async def test_requests_of_a_gather_are_capped() -> None:
    model = Counting()
    assert (await arun(wide, 50, model=model, max_concurrency=8)).value == 50
    assert model.most == 8
    native = Counting()
    async with Session(native, max_concurrency=3):
        assert await wide(10) == 10
    assert native.most == 3
    with pytest.raises(ValueError, match="max_concurrency must be an integer of at least 1, not 0"):
        Session(native, max_concurrency=0)


async def test_tokens_overshoot_by_the_calls_in_flight_at_most() -> None:
    model = Counting()
    result = await arun(wide, 200, model=model, max_concurrency=4, budget=Budget(tokens=100))
    assert result.value is None
    assert 10 <= model.asked <= 10 + 3


INTERRUPTED = """
import asyncio, signal, sys, time
from hive_frontend import agent, gen, run, tool
from hive_frontend.testing import FunctionModel

@agent
async def program():
    print("begun", flush=True)
    await ({wait})

async def slow(request):
    await asyncio.sleep(60)

# Where tests run in the background of a shell, processes ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def notebook():
    run(program, model=FunctionModel(slow))

try:
    {start}
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("wait", ["tool(time.sleep, 60)", "tool(asyncio.sleep, 60)", "gen('q')"])
@pytest.mark.parametrize(
    "start",
    ["run(program, model=FunctionModel(slow))", "asyncio.new_event_loop().run_until_complete(notebook())"],
)
def test_an_interrupt_stops_at_once(tmp_path: Path, wait: str, start: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(INTERRUPTED.format(wait=wait, start=start))
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.3)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        assert process.communicate(timeout=20)[0] == "stopped\n"
        assert time.monotonic() - began < 5
    finally:
        process.kill()
