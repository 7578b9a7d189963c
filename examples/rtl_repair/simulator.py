"""Simulation by Icarus Verilog: does a design pass its testbench?"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from examples.rtl_repair.tools import Finished, require_tools, run

LOG_CHARS: Final = 4_000
"""The most that is kept of a log."""

_CACHED: Final = 4_096
_CACHED_VCD_CHARS: Final = 32 << 20

_VERDICT: Final = re.compile(r"^(?:PASS (\d+) checks|FAILED (\d+) of (\d+) checks)$", re.MULTILINE)


@dataclass(frozen=True)
class Simulation:
    """How a design did in its testbench."""

    compiled: bool
    passed: bool
    checks: int
    """Comparisons that the testbench made; 0 when it did not come to its end."""
    failures: int
    """Comparisons that failed."""
    log: str
    """What compiler and testbench printed, at most `LOG_CHARS` characters, and what ended them if something did."""
    vcd: str | None
    """The waveforms, when they were asked for and the simulation began."""

    @property
    def failing_share(self) -> float:
        """The share of checks that fail; all of them, if the simulation did not come to its end."""
        if self.passed:
            return 0.0
        return self.failures / self.checks if self.checks else 1.0


Key = tuple[str, str, bool, float]


class _Cache:
    """The latest simulations, bounded in number and in characters of waveforms."""

    def __init__(self) -> None:
        self.kept: OrderedDict[Key, Simulation] = OrderedDict()
        self.vcd_chars = 0

    def get(self, key: Key) -> Simulation | None:
        found = self.kept.get(key)
        if found is not None:
            self.kept.move_to_end(key)
        return found

    def put(self, key: Key, simulation: Simulation) -> None:
        if key in self.kept:
            return
        self.kept[key] = simulation
        self.vcd_chars += len(simulation.vcd or "")
        while len(self.kept) > _CACHED or (self.vcd_chars > _CACHED_VCD_CHARS and len(self.kept) > 1):
            _, dropped = self.kept.popitem(last=False)
            self.vcd_chars -= len(dropped.vcd or "")


_cache: Final = _Cache()
_slots: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()


async def simulate(source: str, testbench: str, *, vcd: bool = False, timeout_s: float = 10.0) -> Simulation:
    """Compile a design with its testbench and run it; at most as many at once as there are processors.

    The result says whatever the design does: an endless loop or a crash is a failure with a line in the log.
    Equal calls are answered from a cache. Raises `ToolsMissing` without Icarus Verilog.
    """
    require_tools("iverilog", "vvp")
    key = (source, testbench, vcd, timeout_s)
    async with _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(os.cpu_count() or 1)):
        # Looked up inside: branches of a search that try the same edit at once wait here for the first of them.
        found = _cache.get(key)
        if found is None:
            found = await _simulate(source, testbench, vcd, timeout_s)
            _cache.put(key, found)
    return found


async def _simulate(source: str, testbench: str, vcd: bool, timeout_s: float) -> Simulation:
    with tempfile.TemporaryDirectory(prefix="rtl_repair_") as name:
        folder = Path(name)
        (folder / "design.v").write_text(source)
        (folder / "testbench.v").write_text(testbench)
        # Files are named relative to the folder, so that logs name no folder and are the same in every run.
        flags = ["-DDUMP"] if vcd else []
        compiler = await run(
            ["iverilog", "-g2005", *flags, "-o", "compiled", "design.v", "testbench.v"],
            cwd=folder,
            timeout_s=timeout_s,
        )
        if compiler.code or compiler.timed_out or compiler.flooded:
            log = _log(compiler, "the compiler", timeout_s)
            return Simulation(False, False, 0, 0, log, None)
        done = await run(["vvp", "-n", "compiled"], cwd=folder, timeout_s=timeout_s)
        waves = folder / "dump.vcd"
        dumped = waves.read_text(errors="replace") if vcd and waves.exists() else None
    log = _log(done, "the simulation", timeout_s)
    verdicts = _VERDICT.findall(done.output)
    if done.code or done.timed_out or done.flooded or not verdicts:
        return Simulation(True, False, 0, 0, log, dumped)
    passed, failures, checks = verdicts[-1]
    return Simulation(True, bool(passed), int(passed or checks), int(failures or 0), log, dumped)


def _log(done: Finished, what: str, timeout_s: float) -> str:
    """What was printed, its middle left out if it is long, and why it ended if not by itself."""
    if done.timed_out:
        end = f"{what} was ended after {timeout_s:g} s: does something loop forever?\n"
    elif done.flooded:
        end = f"{what} was ended: it prints without end\n"
    elif done.code < 0:
        end = f"{what} was ended by signal {-done.code}\n"
    elif not done.output:
        end = f"{what} ended with code {done.code} and said nothing\n"
    else:
        end = ""
    kept = done.output
    room = LOG_CHARS - len(end) - 1
    if len(kept) > room:
        gap = "\n[...]\n"
        half = (room - len(gap)) // 2
        kept = kept[:half] + gap + kept[-half:]
    if end and kept and not kept.endswith("\n"):
        kept += "\n"
    return kept + end
