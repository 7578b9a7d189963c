"""Waveforms are read as the simulator writes them, and shown as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.rtl_repair.designs import design
from examples.rtl_repair.simulator import simulate
from examples.rtl_repair.tools import ToolsMissing, missing_tools
from examples.rtl_repair.waveform import signals, view

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))

VCD = """\
$date today $end
$timescale 1ns $end
$scope module testbench $end
$var wire 6 ! count [5:0] $end
$var reg 1 " clk $end
$scope module dut $end
$var wire 6 ! count [5:0] $end
$var reg 4 # state [3:0] $end
$var reg 1 $ busy $end
$upscope $end
$scope module other $end
$var reg 1 % busy $end
$upscope $end
$upscope $end
$enddefinitions $end
#0
$dumpvars
bx !
0"
b0 #
x$
1%
$end
#5
1"
b101 !
#10
0"
b1z01 #
1$
#15
1"
b101101 !
bx10 !
#20
0"
b110111 !
"""


def test_signals_have_their_full_names() -> None:
    assert signals(VCD) == (
        "testbench.count",
        "testbench.clk",
        "testbench.dut.count",
        "testbench.dut.state",
        "testbench.dut.busy",
        "testbench.other.busy",
    )


def test_a_table_has_a_row_for_each_change_of_what_is_shown() -> None:
    assert view(VCD, ["testbench.clk", "count", "state", "dut.busy"], 0, 15) == (
        "time  testbench.clk  count  state  dut.busy\n"
        "   0              0     xx      0         x\n"
        "   5              1     05      0         x\n"
        "  10              0     05      z         1\n"
        "  15              1     xx      z         1"
    )
    assert view(VCD, ["count"], 6, 100) == "time  count\n   6     05\n  15     xx\n  20     37"


def test_long_tables_are_cut_and_say_so() -> None:
    assert view(VCD, ["clk"], 0, 30, max_rows=2) == (
        "time  clk\n   0    0\n   5    1\n... 3 more changes up to 30"
    )


def test_signals_that_are_unknown_or_ambiguous_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no signal is named 'cuont'; there are testbench\.count, "):
        view(VCD, ["cuont"], 0, 10)
    with pytest.raises(
        ValueError, match=r"'busy' may be any of testbench\.dut\.busy, testbench\.other\.busy"
    ):
        view(VCD, ["busy"], 0, 10)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=20))
def test_values_are_those_that_were_dumped(values: list[int]) -> None:
    vcd = "$var wire 8 ! x $end\n" + "".join(f"#{at}\nb{value:b} !\n" for at, value in enumerate(values))
    for at, value in enumerate(values):
        assert view(vcd, ["x"], at, at).splitlines()[-1].split() == [str(at), f"{value:02x}"]


@needs_tools
async def test_a_simulation_can_be_watched() -> None:
    counter = design("counter")
    simulation = await simulate(counter.source, counter.testbench, vcd=True)
    assert simulation.passed
    assert simulation.vcd is not None
    assert "testbench.dut.stepped" in signals(simulation.vcd)
    table = view(simulation.vcd, ["clk", "dut.count", "wrapped"], 20, 60)
    assert [line.split() for line in table.splitlines()] == [
        ["time", "clk", "dut.count", "wrapped"],
        ["20", "0", "0", "0"],
        ["25", "1", "1", "0"],
        ["30", "0", "1", "0"],
        ["35", "1", "2", "0"],
        ["40", "0", "2", "0"],
        ["45", "1", "3", "0"],
        ["50", "0", "3", "0"],
        ["55", "1", "4", "0"],
        ["60", "0", "4", "0"],
    ]
    assert (await simulate(counter.source, counter.testbench)).vcd is None
