"""Edits are well-formed changes of one line, and they undo the bugs."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.rtl_repair.bugs import Bug, candidates, committed
from examples.rtl_repair.designs import Design, all_designs, design
from examples.rtl_repair.edits import MOST, Edit, apply, code, editable_lines, replacements
from examples.rtl_repair.simulator import simulate
from examples.rtl_repair.tools import ToolsMissing, missing_tools
from examples.rtl_repair.verilog import read, tokenize

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))

DESIGN = st.sampled_from(all_designs())

PLAIN = """\
module plain (
    input  wire       clk,
    input  wire       rst,
    input  wire       enable,
    input  wire [3:0] step,
    output reg  [3:0] count
);
  localparam IDLE = 2'd0;
  localparam RUN = 2'd1;
  localparam LAST = 2'd2;
  parameter LIMIT = 9;
  reg [1:0] state;
  wire signed [3:0] low = (count < LIMIT) ? step : 4'd3;
  always @(posedge clk) begin
    if (rst) begin
      count <= 4'd0;  // empty
      state <= IDLE;
    end else if (enable && !low[0]) begin
      count <= count + step;
      state <= RUN;
    end
  end
endmodule
"""


def texts(line: str) -> set[str]:
    """What may replace the line of `PLAIN` that has this code."""
    number = next(place.number for place in read(PLAIN) if place.code == line)
    return set(replacements(PLAIN, number))


def test_edits_that_a_reader_would_think_of() -> None:
    assert {"count = 4'd0;", "count <= 4'd1;", "count <= 4'd15;"} <= texts("count <= 4'd0;")
    assert {"state <= IDLE;", "state <= LAST;", "state = RUN;"} <= texts("state <= RUN;")
    assert {"count <= count - step;", "count <= step + step;", "count = count + step;"} <= texts(
        "count <= count + step;"
    )
    assert {
        "wire signed [3:0] low = (count <= LIMIT) ? step : 4'd3;",
        "wire signed [3:0] low = (count < LIMIT - 1) ? step : 4'd3;",
        "wire signed [3:0] low = (count < LIMIT) ? 4'd3 : step;",
        "wire signed [3:0] low = (step < LIMIT) ? step : 4'd3;",
        "wire signed [4:0] low = (count < LIMIT) ? step : 4'd3;",
        "wire signed [3:0] low = ($signed(count) < LIMIT) ? step : 4'd3;",
    } <= texts("wire signed [3:0] low = (count < LIMIT) ? step : 4'd3;")
    assert {
        "end else if (enable || !low[0]) begin",
        "end else if (!enable && !low[0]) begin",
        "end else if (enable && low[0]) begin",
        "end else if (enable && !low[1]) begin",
    } <= texts("end else if (enable && !low[0]) begin")
    assert {"if (!rst) begin", "if (rst && enable) begin"} <= texts("if (rst) begin")
    assert texts("always @(posedge clk) begin") == {
        "always @(negedge clk) begin",
        "always @(posedge clk or posedge rst) begin",
    }
    assert texts("output reg  [3:0] count") == {
        "output reg  [4:0] count",
        "output reg  [2:0] count",
        "output reg  signed [3:0] count",
    }
    for line in ("module plain (", "end", "endmodule", ");", ""):
        assert not texts(line)


def test_what_nobody_writes_on_purpose_is_mended_by_everything_possible() -> None:
    stuck = apply(PLAIN, Edit(18, "end else if (1'b1) begin"))
    assert {"end else if (enable) begin", "end else if (!enable) begin"} <= set(replacements(stuck, 18))
    kept = apply(PLAIN, Edit(17, "state <= state;"))
    assert {"state <= IDLE;", "state <= LAST;", "state <= 2'd0;"} <= set(replacements(kept, 17))


@given(DESIGN)
def test_replacements_are_bounded_other_lines_without_doubles(design: Design) -> None:
    lines = design.source.split("\n")
    editable = editable_lines(design.source)
    assert editable == tuple(sorted(set(editable)))
    for number in range(1, len(lines) + 1):
        found = replacements(design.source, number)
        assert (number in editable) == bool(found)
        assert len(found) <= MOST
        assert len({*found, code(design.source, number)}) == len(found) + 1
        for text in found:
            assert text == text.strip()
            assert text
            assert "\n" not in text
            assert "//" not in text
            # A grammar that admits a text must not have to choose between ending and going on.
            assert not any(other != text and other.startswith(text) for other in found)
    assert not replacements(design.source, 0)
    assert not replacements(design.source, len(lines) + 1)


@given(DESIGN, st.data())
def test_an_edit_changes_its_line_only_and_can_be_undone(design: Design, data: st.DataObject) -> None:
    number = data.draw(st.sampled_from(editable_lines(design.source)))
    text = data.draw(st.sampled_from(replacements(design.source, number)))
    edited = apply(design.source, Edit(number, text))
    before, after = design.source.split("\n"), edited.split("\n")
    assert [at for at, pair in enumerate(zip(before, after, strict=True), start=1) if pair[0] != pair[1]] == [
        number
    ]
    assert code(edited, number) == text
    old, new = before[number - 1], after[number - 1]
    assert len(old) - len(old.lstrip()) == len(new) - len(new.lstrip())
    assert apply(edited, Edit(number, code(design.source, number))) == design.source
    assert replacements.__wrapped__(design.source, number) == replacements(design.source, number)


def test_comments_and_indentation_stay() -> None:
    edited = apply(PLAIN, Edit(16, "count = 4'd0;"))
    assert edited.split("\n")[15] == "      count = 4'd0;  // empty"


def test_bad_edits_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no line 99; the source has 24"):
        apply(PLAIN, Edit(99, "x"))
    with pytest.raises(ValueError, match="line 23 is not editable: 'endmodule'"):
        apply(PLAIN, Edit(23, "x"))
    with pytest.raises(ValueError, match="one line"):
        apply(PLAIN, Edit(16, "count = 4'd0;\n$finish;"))
    assert "count <= 4'd7;" in apply(PLAIN, Edit(16, "count <= 4'd7;"))


def is_mended(bug: Bug) -> bool:
    return bug.original in replacements(bug.source, bug.line)


def test_nearly_every_bug_has_its_fix_among_the_edits() -> None:
    bugs = committed()
    possible = [bug for design in all_designs() for bug in candidates(design)]
    drawn = random.Random(0).sample(possible, 600)
    share, share_drawn = (sum(map(is_mended, some)) / len(some) for some in (bugs, drawn))
    print(
        f"the fix is among the edits for {share:.1%} of the suite, {share_drawn:.1%} of {len(drawn)} others"
    )
    assert share >= 0.95
    assert share_drawn >= 0.95


@needs_tools
async def test_nearly_all_edits_compile() -> None:
    edits = [
        (design, Edit(line, text))
        for design in all_designs()
        for line in editable_lines(design.source)
        for text in replacements(design.source, line)
    ]
    drawn = random.Random(1).sample(edits, 60)
    results = await asyncio.gather(
        *(simulate(apply(d.source, edit), d.testbench, timeout_s=2) for d, edit in drawn)
    )
    bad = [(d.name, edit, r.log) for (d, edit), r in zip(drawn, results, strict=True) if not r.compiled]
    assert len(bad) <= 2, bad


@given(st.text(alphabet="ab01'hd<>=&|!~^+-?:;,.(){}[]@#$ ", max_size=30))
def test_any_line_has_tokens_and_replacements(text: str) -> None:
    """Whatever stands in a line, reading it raises nothing: models may be let loose on it."""
    assert "".join(token.text for token in tokenize(text)).replace(" ", "") == text.replace(" ", "")
    assert replacements(f"module m;\n  reg a, b;\n  {text}\nendmodule\n", 3) is not None


def test_lines_of_a_design_are_read_as_they_are() -> None:
    source = design("cdc_handshake").source
    lines = read(source)
    assert "\n".join(line.indentation + line.code + line.comment for line in lines) == source
    # Names are those of the module a line stands in.
    assert "meta" in lines[10].scope.signals
    assert "meta" not in lines[-5].scope.signals
    assert lines[-5].scope.clocks == {"src_clk", "dst_clk"}
