"""Bugs are single changed lines, of every kind, that their testbenches notice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from examples.rtl_repair import bugs
from examples.rtl_repair.bugs import KINDS, Bug, candidates, committed, is_verified, suite
from examples.rtl_repair.designs import all_designs, design
from examples.rtl_repair.edits import Edit, apply, code
from examples.rtl_repair.simulator import Simulation, simulate
from examples.rtl_repair.tools import ToolsMissing, missing_tools

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))


def check_form(bug: Bug) -> None:
    """That a bug is one changed line of its design."""
    source = design(bug.design).source
    assert bug.kind in KINDS
    assert code(source, bug.line) == bug.original != bug.mutated == code(bug.source, bug.line)
    assert bug.source != source
    assert apply(bug.source, Edit(bug.line, bug.original)) == source


def test_candidates_are_of_all_kinds_in_a_fixed_order() -> None:
    assert len(KINDS) >= 10
    found: Counter[str] = Counter()
    for source in all_designs():
        some = candidates(source)
        assert [bug.line for bug in some] == sorted(bug.line for bug in some)
        assert len({bug.source for bug in some}) == len(some)
        found.update(bug.kind for bug in some)
    assert set(found) == set(KINDS)
    assert min(found.values()) >= 10


def test_bugs_one_would_think_of() -> None:
    found = {(bug.kind, bug.mutated) for bug in candidates(design("counter"))}
    assert found >= {
        ("wrong_operator", "stepped = at_top ? {WIDTH{1'b0}} : count - 1'b1;"),
        ("off_by_one", "parameter [WIDTH-1:0] LIMIT = 12"),
        ("swapped_branch", "wrapped <= up ? at_bottom : at_top;"),
        ("blocking_assignment", "count = load_value;"),
        ("wrong_width", "reg [WIDTH-2:0] stepped;"),
        ("inverted_condition", "end else if (!load) begin"),
        ("stuck_enable", "end else if (1'b1) begin"),
        ("missing_reset", "always @(posedge clk) begin"),
        ("missing_reset", "count <= count;"),
        ("missing_reset", "if (1'b0) begin"),
        ("wrong_signal", "wire at_top = (load_value == LIMIT);"),
        ("wrong_edge", "always @(negedge clk or negedge rst_n) begin"),
        ("wrong_edge", "always @(enable) begin"),
    }


def test_the_committed_suite_fits_the_designs() -> None:
    some = committed()
    assert len(some) >= 60
    assert len({bug.source for bug in some}) == len(some)
    assert {bug.design for bug in some} == {design.name for design in all_designs()}
    assert {bug.kind for bug in some} == set(KINDS)
    for bug in some:
        check_form(bug)


def test_a_suite_that_no_longer_fits_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "bugs.json"
    file.write_text(
        '[{"design": "counter", "kind": "off_by_one", "line": 1, "original": "x", "mutated": "y"}]'
    )
    monkeypatch.setattr(bugs, "FILE", file)
    with pytest.raises(ValueError, match=r"line 1 of counter is no longer 'x': write bugs\.json anew"):
        committed()


@needs_tools
async def test_committed_bugs_compile_and_fail() -> None:
    for bug in committed():
        simulation = await simulate(bug.source, design(bug.design).testbench)
        assert is_verified(simulation), (bug, simulation.log)


@needs_tools
async def test_the_committed_suite_is_what_its_command_chooses() -> None:
    assert committed() == await suite(bugs.COUNT, seed=0)


def test_a_suite_of_nothing_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bugs, "FILE", tmp_path / "bugs.json")
    with pytest.raises(SystemExit, match="2"):
        bugs.main(["--count", "0", "--write"])
    assert "--count must be at least 1" in capsys.readouterr().err
    assert not bugs.FILE.exists()


@needs_tools
async def test_suites_are_seeded_verified_and_spread() -> None:
    some = [design(name) for name in ("counter", "uart_tx", "stack")]
    first = await suite(9, seed=5, designs=some)
    assert first == await suite(9, seed=5, designs=some) != await suite(9, seed=6, designs=some)
    assert set(Counter(bug.design for bug in first).values()) == {3}
    assert len({bug.kind for bug in first}) >= 8
    for bug in first:
        check_form(bug)
        assert is_verified(await simulate(bug.source, design(bug.design).testbench))


@needs_tools
async def test_a_suite_larger_than_the_designs_allow_is_refused() -> None:
    with pytest.raises(ValueError, match="5 bugs were asked for, and the designs have 0"):
        await suite(5, seed=0, designs=[])


def test_only_what_was_checked_to_the_end_is_verified() -> None:
    assert is_verified(Simulation(True, False, 10, 1, "", None))
    assert not is_verified(Simulation(True, True, 10, 0, "", None))
    assert not is_verified(Simulation(False, False, 0, 0, "", None))
    assert not is_verified(Simulation(True, False, 0, 0, "", None))
