"""``python -m bench.frontend --json FILE [--quick]``: what the frontend costs, with a model that costs nothing.

Transitions per second, bytes per live state, the time of a fork; and one search of 52 model calls under Hive, on
LangGraph and by hand on asyncio, with the same requests and the same results, interleaved. LangGraph's headline is
without a checkpointer, which is the favourable one for it; Hive's times are those of `arun`, whose search tree is not
made here. Then a model call over HTTP, to a stub in another process, beside the same exchange by hand. Times are
those of the processor: nothing waits in any arm, and what else a machine does takes no part.
``--quick`` takes less than a minute on two cores.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.frontend.client import client_ms
from bench.frontend.comparison import ARM_NAMES, Comparison, Unequal
from bench.frontend.report import Report, Spread, arms_table, client_table, goals_table
from bench.frontend.states import fork_us, memory, transitions_per_s
from bench.frontend.workload import CALLS
from bench.harness.command import Command, Run
from bench.harness.machine import versions

_PACKAGES = ("hive", "langgraph", "langgraph-checkpoint", "langchain-core", "uvloop", "pydantic", "aiohttp")
REPEATS, QUICK_REPEATS = 21, 7


async def measure(repeats: int, loop: str, run: Run) -> Report:
    """Everything; `repeats` of each timing."""
    console = run.console
    spread: dict[str, Spread] = {}
    arms = []
    for suspends, suffix in ((False, ""), (True, "_suspending")):
        console.print(f"transitions{' (model suspends)' if suspends else ''}")
        spread[f"transitions_per_s{suffix}"] = await transitions_per_s(repeats, suspends=suspends)
    comparisons = [Comparison(suspends=suspends) for suspends in (False, True)]
    for comparison in comparisons:
        await comparison.warm_up()
    for turn in range(repeats):
        console.print(f"comparison, repeat {turn + 1} of {repeats}")
        for comparison in comparisons:
            await comparison.repeat(turn)
    for comparison, suffix in zip(comparisons, ("", "_suspending"), strict=True):
        arms += [comparison.arm(name) for name in ARM_NAMES]
        spread[f"langgraph_ratio{suffix}"] = comparison.ratio("langgraph", "hive")
        spread[f"langgraph_ratio_checkpointed{suffix}"] = comparison.ratio("langgraph_checkpointed", "hive")
        spread[f"asyncio_ratio{suffix}"] = comparison.ratio("hive", "asyncio")
    console.print("model calls over HTTP")
    spread |= await client_ms(repeats)
    console.print("forks and states")
    spread["fork_us"] = await fork_us(repeats)
    weights = await memory()
    return Report(
        command=run.command,
        versions=versions(_PACKAGES),
        machine=machine(),
        seconds=round(time.monotonic() - run.began, 1),
        event_loop=loop,
        bytes_per_state=max(weights.bytes_per_state, weights.bytes_per_state_with_data - weights.data_bytes),
        calls_per_search=CALLS,
        spread=spread,
        memory=weights,
        arms=arms,
        **{key: each.median for key, each in spread.items()},
    )


def machine() -> dict[str, str | int]:
    """The processor: nothing here runs on a GPU."""
    found: dict[str, str | int] = {
        "architecture": platform.machine(),
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    if names := [line for line in lines if line.startswith("model name")]:
        found["processor"] = names[0].partition(":")[2].strip()
    return found


def event_loop() -> tuple[str, Callable[[], asyncio.AbstractEventLoop] | None]:
    """The loop that `hive.run` would take."""
    try:
        import uvloop
    except ImportError:
        return "asyncio", None
    return "uvloop", uvloop.new_event_loop


def main(argv: Sequence[str] | None = None) -> None:
    quick = f"{QUICK_REPEATS} repeats of each timing instead of {REPEATS}"
    run = Command("bench.frontend", __doc__, quick=quick, width=140).run(argv)
    name, factory = event_loop()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            report = runner.run(measure(QUICK_REPEATS if run.options.quick else REPEATS, name, run))
    except Unequal as error:
        raise SystemExit(f"bench: {error}") from None
    run.finish(report, [arms_table(report), client_table(report), goals_table(report)])


if __name__ == "__main__":
    main()
