"""The designs are complete, documented, correct and clean."""

from __future__ import annotations

import re

import pytest

from bench.rtl_repair.designs import FOLDER, Design, all_designs, design
from bench.rtl_repair.lint import lint
from bench.rtl_repair.simulator import simulate
from bench.rtl_repair.tools import ToolsMissing, missing_tools

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))
each_design = pytest.mark.parametrize("design", all_designs(), ids=lambda design: design.name)


def test_there_are_many_designs_by_name() -> None:
    names = [design.name for design in all_designs()]
    assert names == sorted(names) == sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())
    assert len(names) >= 22
    assert design("counter").name == "counter"
    with pytest.raises(KeyError, match=r"no design is named 'conter'; there are alu, .*counter"):
        design("conter")


@each_design
def test_designs_are_documented_and_of_a_size_to_read(design: Design) -> None:
    assert 25 <= len(design.source.splitlines()) <= 120
    assert design.source.count("//") >= 2
    sentences = re.findall(r"[.;] |\.$", design.description)
    assert 2 <= len(sentences) <= 12
    assert "\n" not in design.description
    assert re.search(rf"^module {design.top}\b", design.source, re.MULTILINE)
    assert re.search(rf"^ *{design.top} .*\(", design.testbench, re.MULTILINE)
    # A testbench stands alone: what it includes is in place.
    assert "`include" not in design.testbench
    assert "watchdog" in design.testbench


@needs_tools
@each_design
async def test_designs_pass_their_testbenches(design: Design) -> None:
    simulation = await simulate(design.source, design.testbench)
    assert simulation.passed, simulation.log
    assert simulation.checks >= 100
    assert simulation.log == f"PASS {simulation.checks} checks\n"


@needs_tools
@each_design
async def test_designs_give_the_linter_nothing_to_say(design: Design) -> None:
    warnings = await lint(design.source, design.top)
    # Other versions of Verilator may know more warnings; errors are errors in all of them.
    errors = [warning for warning in warnings if warning.code in ("ERROR", "LATCH", "WIDTH", "MULTIDRIVEN")]
    assert not errors, "\n".join(map(str, warnings))


@needs_tools
async def test_the_linter_names_line_rule_and_reason() -> None:
    counter = design("counter")
    narrow = counter.source.replace("output reg  [WIDTH-1:0] count", "output reg  [WIDTH-2:0] count")
    assert narrow != counter.source
    lines = narrow.splitlines()
    warnings = [warning for warning in await lint(narrow, "counter") if "WIDTH" in warning.code]
    assert warnings
    for warning in warnings:
        assert "count" in lines[warning.line - 1]
        assert str(warning) == f"line {warning.line}: {warning.code}: {warning.text}"
    broken = await lint(counter.source.replace("endmodule", ""), "counter")
    assert broken[-1].code == "ERROR"
    absent = await lint(counter.source, "no_such_module")
    assert [warning.code for warning in absent] == ["ERROR"]
    assert "no_such_module" in absent[0].text
