"""``python -m bench.frontend --json FILE [--quick]``: what the frontend costs, with a model that costs nothing.

Transitions per second, bytes per live state, the time of a fork; and one search of 52 model calls under Hive, on
LangGraph and by hand on asyncio, with the same requests and the same results, interleaved. LangGraph's headline is
without a checkpointer, which is the favourable one for it; Hive's times are those of `arun`, whose search tree nobody
looks at here. Then a model call over HTTP, to a stub in another process, beside the same exchange by hand. Times are
those of the processor: nothing waits in any arm, and what else a machine does takes no part.
``--quick`` takes less than a minute on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from rich.console import Console

from bench.frontend.client import client_ms
from bench.frontend.comparison import ARM_NAMES, Comparison, Unequal
from bench.frontend.report import Report, Spread, arms_table, client_table, goals_table
from bench.frontend.states import fork_us, memory, transitions_per_s
from bench.frontend.workload import CALLS

_PACKAGES = ("hive", "langgraph", "langgraph-checkpoint", "langchain-core", "uvloop", "pydantic", "aiohttp")
REPEATS, QUICK_REPEATS = 21, 7


async def measure(repeats: int, command: str, loop: str, console: Console) -> Report:
    """Everything; `repeats` of each timing."""
    began = time.perf_counter()
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
        command=command,
        versions={
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        machine=machine(),
        event_loop=loop,
        seconds=round(time.perf_counter() - began, 1),
        bytes_per_state=max(weights.bytes_per_state, weights.bytes_per_state_with_data - weights.data_bytes),
        calls_per_search=CALLS,
        spread=spread,
        memory=weights,
        arms=arms,
        **{key: each.median for key, each in spread.items()},
    )


def machine() -> dict[str, str | int]:
    """What computed, without the names of hosts and folders."""
    found: dict[str, str | int] = {
        "architecture": platform.machine(),
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }
    info = Path("/proc/cpuinfo")
    names = (
        [line for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    if names:
        found["processor"] = names[0].partition(":")[2].strip()
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def event_loop() -> tuple[str, Callable[[], asyncio.AbstractEventLoop] | None]:
    """The loop that `hive.run` would take."""
    try:
        import uvloop
    except ImportError:
        return "asyncio", None
    return "uvloop", uvloop.new_event_loop


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.frontend",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="write the report here")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_REPEATS} repeats of each timing instead of {REPEATS}"
    )
    options = parser.parse_args(argv)
    command = shlex.join(
        [
            "python",
            "-m",
            "bench.frontend",
            "--json",
            options.json.name,
            *(["--quick"] if options.quick else []),
        ]
    )
    # In a file the tables shall have the room that they need.
    console = Console(width=None if sys.stdout.isatty() else 140)
    name, factory = event_loop()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            report = runner.run(measure(QUICK_REPEATS if options.quick else REPEATS, command, name, console))
    except Unequal as error:
        raise SystemExit(f"bench: {error}") from None
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(report.model_dump_json(indent=1) + "\n")
    console.print(arms_table(report))
    console.print(client_table(report))
    console.print(goals_table(report))
    print(f"report: {options.json.name} ({report.seconds:.0f} s)")


if __name__ == "__main__":
    main()
