"""The external tools, Icarus Verilog and Verilator: whether they are there, and how they are run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TOOLS: Final = ("iverilog", "vvp", "verilator")
INSTALL: Final = "apt-get install -y iverilog verilator"

_CHUNK: Final = 1 << 16


class ToolsMissing(RuntimeError):
    """Some of `TOOLS` are not installed; the message says which, and how to get them."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(f"not found on PATH: {', '.join(missing)}; install with `{INSTALL}`")


def missing_tools() -> tuple[str, ...]:
    """Those of `TOOLS` that are not on PATH."""
    return tuple(name for name in TOOLS if shutil.which(name) is None)


def require_tools(*names: str) -> None:
    """Raise `ToolsMissing` unless the named tools, or all when none is named, are on PATH."""
    missing = [name for name in missing_tools() if name in (names or TOOLS)]
    if missing:
        raise ToolsMissing(missing)


@dataclass(frozen=True)
class Finished:
    """A process that came to an end, or was ended."""

    code: int
    """The exit code; negative for a signal, as `subprocess` has it."""
    output: str
    """Standard output and error, interleaved."""
    timed_out: bool
    flooded: bool
    """Whether it was ended because it wrote more than it may."""


async def run(command: Sequence[str], *, cwd: Path, timeout_s: float, max_output: int = 1 << 20) -> Finished:
    """Run a command in a process group of its own, which is killed after `timeout_s` seconds.

    It is also killed once it wrote `max_output` bytes, so that a loop that prints fills no memory, and when the
    caller is cancelled. Raises `FileNotFoundError` when there is no such command.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    output = bytearray()
    timed_out = flooded = False
    try:
        async with asyncio.timeout(timeout_s):
            while chunk := await process.stdout.read(_CHUNK):
                output += chunk
                if len(output) > max_output:
                    flooded = True
                    break
            else:
                await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        # The group may outlive its leader: `iverilog` starts a preprocessor and a code generator.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return Finished(await process.wait(), output[:max_output].decode(errors="replace"), timed_out, flooded)
