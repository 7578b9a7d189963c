"""Simulation tells whatever happens: nothing that a design does is an exception, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from examples.rtl_repair import simulator, tools
from examples.rtl_repair.designs import design
from examples.rtl_repair.lint import lint
from examples.rtl_repair.simulator import LOG_CHARS, Simulation, simulate
from examples.rtl_repair.tools import Finished, ToolsMissing, missing_tools, require_tools, run

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))

COUNTER = design("counter")


def with_testbench(body: str) -> tuple[str, str]:
    """A trivial design, and a testbench that does `body`."""
    return "module nothing; endmodule\n", f"module testbench; {body} endmodule\n"


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@needs_tools
async def test_a_bug_fails_with_a_line_per_mismatch() -> None:
    source = COUNTER.source.replace("count + 1'b1", "count + 2'd2")
    simulation = await simulate(source, COUNTER.testbench)
    assert simulation.compiled
    assert not simulation.passed
    assert 0 < simulation.failures < simulation.checks
    first, *_, last = simulation.log.splitlines()
    assert first == "FAIL 30 count expected 1 got 2"
    assert last == f"FAILED {simulation.failures} of {simulation.checks} checks"
    assert len(simulation.log.splitlines()) == 11


@needs_tools
async def test_what_does_not_compile_is_told_with_its_line() -> None:
    simulation = await simulate(COUNTER.source.replace("count <= stepped;", "count <= ;"), COUNTER.testbench)
    assert simulation == Simulation(False, False, 0, 0, simulation.log, None)
    assert "design.v:36: syntax error" in simulation.log


@needs_tools
@pytest.mark.parametrize(
    ("body", "end"),
    [
        (
            "reg a = 0; reg b = 0; always @(a) b = ~a; always @(b) a = b; initial #1 a = 1;",
            "the simulation was ended after 0.5 s: does something loop forever?",
        ),
        ('initial forever $display("again");', "the simulation was ended: it prints without end"),
        ("initial $finish(0);", "the simulation ended with code 0 and said nothing"),
        ('initial begin $display("FAIL 1"); $finish(0); end', "FAIL 1"),
    ],
)
async def test_a_simulation_that_comes_to_no_verdict_is_a_failure(body: str, end: str) -> None:
    simulation = await simulate(*with_testbench(body), timeout_s=0.5)
    assert simulation.compiled
    assert not simulation.passed
    assert (simulation.checks, simulation.failures) == (0, 0)
    assert simulation.log.splitlines()[-1] == end
    assert len(simulation.log) <= LOG_CHARS


@needs_tools
async def test_the_verdict_of_the_testbench_is_the_last_one() -> None:
    body = 'initial begin $display("PASS 3 checks"); $display("FAILED 2 of 9 checks"); $finish(0); end'
    simulation = await simulate(*with_testbench(body))
    assert (simulation.passed, simulation.checks, simulation.failures) == (False, 9, 2)


@needs_tools
async def test_equal_simulations_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    async def counted(command: list[str], **options: object) -> Finished:
        started.append(command[0])
        return await run(command, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(simulator, "run", counted)
    monkeypatch.setattr(simulator, "_cache", simulator._Cache())
    args = with_testbench('initial begin $display("PASS 1 checks"); $finish(0); end')
    several = await asyncio.gather(*(simulate(*args) for _ in range(os.cpu_count() or 1)))
    assert all(simulation.passed for simulation in several)
    rerun = await simulate(*args)
    assert rerun == several[0]
    # Those that began at the same moment may each have run it, those that waited did not.
    before = len(started)
    await asyncio.gather(*(simulate(*args) for _ in range(50)))
    assert len(started) == before
    await simulate(*args, vcd=True)
    assert len(started) == before + 2


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_CACHED", 3)
    monkeypatch.setattr(simulator, "_CACHED_VCD_CHARS", 100)
    cache = simulator._Cache()
    small = Simulation(True, True, 1, 0, "", None)
    for name in "abcd":
        cache.put((name, "", False, 1.0), small)
    cache.get(("b", "", False, 1.0))
    cache.put(("e", "", False, 1.0), small)
    assert [key[0] for key in cache.kept] == ["d", "b", "e"]
    large = Simulation(True, True, 1, 0, "", "x" * 80)
    cache.put(("f", "", True, 1.0), large)
    cache.put(("g", "", True, 1.0), large)
    assert [key[0] for key in cache.kept] == ["g"]
    assert cache.vcd_chars == 80


@needs_tools
async def test_no_folder_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    body = 'initial begin $display("PASS 2 checks"); $finish(0); end'
    assert (await simulate(*with_testbench(body))).passed
    await lint(COUNTER.source, "counter")
    assert not os.listdir(tmp_path)


@pytest.mark.usefixtures("no_tools")
async def test_missing_tools_are_named_with_the_way_to_get_them() -> None:
    assert missing_tools() == ("iverilog", "vvp", "verilator")
    message = (
        r"not found on PATH: iverilog, vvp, verilator; install with `apt-get install -y iverilog verilator`"
    )
    with pytest.raises(ToolsMissing, match=message):
        require_tools()
    with pytest.raises(ToolsMissing, match="not found on PATH: iverilog, vvp; install"):
        await simulate(COUNTER.source, COUNTER.testbench)
    with pytest.raises(ToolsMissing, match="not found on PATH: verilator; install"):
        await lint(COUNTER.source, "counter")


async def test_a_process_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    child = f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    begin = time.monotonic()
    done = await run([sys.executable, "-c", parent], cwd=tmp_path, timeout_s=0.5)
    assert done.timed_out
    assert time.monotonic() - begin < 1.4
    waiting = asyncio.create_task(run([sys.executable, "-c", parent], cwd=tmp_path, timeout_s=60))
    await asyncio.sleep(0.3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(1.8)
    assert not (tmp_path / "late").exists()


async def test_output_and_code_of_a_process(tmp_path: Path) -> None:
    script = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr); sys.exit(3)"
    done = await run([sys.executable, "-c", script], cwd=tmp_path, timeout_s=60)
    assert done == Finished(3, "out\nerr\n", False, False)
    script = "print('x' * 1000)"
    done = await run([sys.executable, "-c", script], cwd=tmp_path, timeout_s=60, max_output=10)
    assert (done.output, done.flooded) == ("x" * 10, True)


def test_every_tool_has_a_package() -> None:
    assert set(tools.INSTALL.split()) & set(tools.TOOLS) == {"iverilog", "verilator"}
