"""The designs are complete, documented, correct and clean."""

from __future__ import annotations

import re

import pytest

from examples.rtl_repair.designs import FOLDER, INSTANCE, Design, all_designs, design
from examples.rtl_repair.lint import lint
from examples.rtl_repair.simulator import simulate
from examples.rtl_repair.tools import ToolsMissing, missing_tools
from examples.rtl_repair.waveform import view

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))
END_OF_TIME = 1_000_000
"""Every testbench's watchdog ends it long before."""

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
    # Its instance is `INSTANCE`, where the agents look for its signals.
    assert re.findall(rf"^ *{design.top} (?:#\(.*\) )?(\w+) \($", design.testbench, re.MULTILINE) == ["dut"]
    assert re.findall(r"^ *module +(\w+)", design.testbench, re.MULTILINE) == ["testbench"]
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


def input_widths(design: Design, vcd: str) -> dict[str, int]:
    """The inputs of a design, and how many bits each has in the testbench."""
    top = design.source[design.source.index(f"module {design.top}") :]
    names = re.findall(r"^ *input +wire +(?:signed +)?(?:\[[^\]]*\] +)?(\w+),?$", top, re.MULTILINE)
    assert len(names) == len(re.findall(r"\binput\b", top)) >= 2
    instance = vcd[vcd.index("$scope module dut $end") :]
    variables = {name: int(width) for width, name in re.findall(r"\$var wire (\d+) \S+ (\w+)", instance)}
    return {name: variables[name] for name in names}


def seen(vcd: str, name: str, width: int) -> list[set[int]]:
    """The known values that each bit of a signal takes, the lowest bit first."""
    rows = view(vcd, [name], 0, END_OF_TIME, max_rows=END_OF_TIME).splitlines()[1:]
    values = [int(row.split()[1], 16) for row in rows if re.fullmatch(r" *\d+ +[0-9a-f]+", row)]
    return [{value >> bit & 1 for value in values} for bit in range(width)]


@needs_tools
@each_design
async def test_every_bit_of_every_input_takes_both_values(design: Design) -> None:
    vcd = (await simulate(design.source, design.testbench, vcd=True)).vcd
    assert vcd is not None
    stuck = [
        f"{name}[{bit}]"
        for name, width in input_widths(design, vcd).items()
        for bit, values in enumerate(seen(vcd, f"{INSTANCE}.{name}", width))
        if values != {0, 1}
    ]
    assert not stuck


@needs_tools
async def test_gray_codes_are_checked_backward_too() -> None:
    gray = design("gray_counter")
    for backward in ("16'd5", "count + 1'b1", "count - 2'd3", "count"):
        wrong = gray.source.replace("count - 1'b1", backward)
        assert wrong != gray.source
        simulation = await simulate(wrong, gray.testbench)
        assert simulation.compiled
        assert simulation.failures >= 20, (backward, simulation.log)


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
