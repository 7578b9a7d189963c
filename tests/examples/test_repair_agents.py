"""The agents repair a real design with a scripted model; each of them does its part."""

from __future__ import annotations

import re

import pytest
from hive_frontend.client import sample_seed
from hive_frontend.testing import ScriptedModel

from examples.rtl_repair import agents, prompts
from examples.rtl_repair.agents import Case, Outcome, Rules, decision, offered, waveform
from examples.rtl_repair.bugs import Bug
from examples.rtl_repair.designs import Design, all_designs, design
from examples.rtl_repair.edits import Edit, apply, editable_lines, replacements
from examples.rtl_repair.simulator import Simulation
from examples.rtl_repair.tools import ToolsMissing, missing_tools
from examples.rtl_repair.verilog import with_code
from examples.rtl_repair.waveform import signals
from hive import Request, RunResult, TreeOfThoughts, arun

COUNTER = design("counter")
NUMBER = next(
    number for number, line in enumerate(COUNTER.source.splitlines(), start=1) if "at_top =" in line
)
RIGHT = "wire at_top = (count == LIMIT);"
BROKEN = "wire at_top = (count != LIMIT);"
BUG = Bug("counter", "wrong_operator", NUMBER, RIGHT, BROKEN, with_code(COUNTER.source, NUMBER, BROKEN))
REPAIR = Edit(NUMBER, RIGHT)

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))


def knows(request: Request) -> str:
    """Chooses what repairs the bug, and has a few words for everything else."""
    right = {"line": str(REPAIR.line), "text": REPAIR.text}
    choices = request.sampling.choices
    if not choices:
        return f"some words of {request.name}"
    return right[request.name] if right.get(request.name or "") in choices else choices[0]


def team(decisions: list[str], patches: list[Edit]) -> ScriptedModel:
    """A model that decides and patches as it is told."""
    return ScriptedModel(
        {
            "decide": decisions,
            "line": [str(edit.line) for edit in patches],
            "text": [edit.text for edit in patches],
            "*": knows,
        }
    )


def other_edit(number: int) -> Edit:
    """An edit of a line that repairs nothing."""
    return Edit(number, next(text for text in replacements(BUG.source, number) if text != RIGHT))


async def useless_edits(count: int) -> list[Edit]:
    """Edits that will not be kept."""
    share = (await agents.simulate(BUG.source, COUNTER.testbench)).failing_share
    found: list[Edit] = []
    for number in editable_lines(BUG.source):
        edit = Edit(number, replacements(BUG.source, number)[0])
        after = await agents.simulate(apply(BUG.source, edit), COUNTER.testbench)
        if after.failing_share >= share:
            found.append(edit)
    return found[:count]


def calls_of(model: ScriptedModel, agent: str) -> list[Request]:
    return [call for call in model.calls if call.agent == agent]


@needs_tools
async def test_all_five_agents_repair_a_bug() -> None:
    wrong = other_edit(NUMBER + 1)
    model = team(["view", "search", "search"], [wrong, REPAIR])
    result: RunResult[Outcome] = await arun(decision, COUNTER, [BUG], Rules(patches=2), model=model)
    assert result.value == Outcome(repairs={0: [REPAIR]}, bugs=1, patches=2)
    assert result.best is not None
    assert result.best.score == 0.0
    assert set(result.totals.agents) == {"Decision", "Viewer", "Searcher", "Summary", "Patcher"}
    # Two looks before each patch; then there was nothing left to choose.
    asked = [call.name for call in model.calls]
    assert asked == [
        *("decide", "signal", "report", "decide", "query", "answer", "minutes", "line", "text"),
        *("decide", "query", "answer", "minutes", "signal", "report", "line", "text"),
    ]
    last = calls_of(model, "Decision")[-1].messages
    assert [message.role for message in last] == ["system", *["user", "assistant"] * 3, "user"]
    assert [message.content for message in last if message.role == "assistant"] == ["view", "search", "patch"]
    told = [message.content for message in last if message.role == "user"]
    assert COUNTER.description in told[0]
    assert "Viewer: some words of report" in told[1]
    assert "some words of minutes" in told[2]
    assert f"Line {wrong.line} was" in told[3]
    assert "undone" in told[3]


@needs_tools
async def test_viewer_and_patcher_begin_alike_and_the_patcher_learns_of_its_patches() -> None:
    wrong = other_edit(NUMBER + 1)
    model = team(["view", "patch"] * 2, [wrong, REPAIR])
    await arun(decision, COUNTER, [BUG], Rules(patches=2), model=model)
    viewed, patches = calls_of(model, "Viewer"), calls_of(model, "Patcher")
    assert viewed[0].messages[0] == patches[0].messages[0]
    listing = prompts.listing(BUG.source)
    assert viewed[0].messages[1].content.startswith(listing)
    assert patches[0].messages[1].content.startswith(listing)
    assert "Viewer: some words of report" in patches[0].messages[1].content
    assert patches[1].sampling.choices == replacements(BUG.source, wrong.line)
    # One dialogue as long as the source is the same, and what was undone is not offered again.
    assert patches[2].messages[: len(patches[1].messages)] == patches[1].messages
    assert "undone" in patches[2].text
    later = [call for call in patches if call.name == "text"][-1]
    assert later.sampling.choices == replacements(BUG.source, NUMBER)


@needs_tools
async def test_a_run_out_of_patches_fails_and_says_how_far_it_came() -> None:
    model = team(["view", "patch"], [other_edit(NUMBER)])
    result = await arun(decision, COUNTER, [BUG], Rules(patches=1), model=model)
    assert result.best is None
    (dead,) = [node for node in result.tree.nodes if node.status == "dead"]
    assert "checks fail" in (dead.failure or "")


@needs_tools
async def test_a_search_repairs_what_a_single_run_does_not() -> None:
    def knows_at_times(request: Request) -> str:
        if request.sampling.choices and sample_seed(request.seed, request.sample) % 3:
            return request.sampling.choices[-1]
        return knows(request)

    once = await arun(decision, COUNTER, [BUG], Rules(patches=1), model=ScriptedModel(knows_at_times), seed=1)
    assert once.best is None
    model = ScriptedModel(knows_at_times)
    tot = TreeOfThoughts(branch_at="patch", branching=8, breadth=2)
    searched = await arun(decision, COUNTER, [BUG], Rules(patches=3), model=model, seed=1, supervisor=tot)
    assert searched.value is not None
    assert searched.value.repairs[0][-1] == REPAIR
    # Every branch has a Patcher of its own: what is told to be undone was written in the same dialogue.
    for call in calls_of(model, "Patcher"):
        for number, text in re.findall(r"Line (\d+) was `.*` and now reads `(.*)`\. ", call.text):
            written = [message.content for message in call.messages if message.role == "assistant"]
            assert written[-2:] == [number, text]


@needs_tools
async def test_a_long_session_goes_from_bug_to_bug_and_is_condensed() -> None:
    model = team(["stop"], [*(await useless_edits(3)), REPAIR])
    rules = Rules(patches=4, lookups=0, keep_going=True, turns=3)
    result = await arun(decision, COUNTER, [BUG, BUG, BUG], rules, model=model)
    assert result.value == Outcome(repairs={1: [REPAIR]}, bugs=2, patches=4)
    # Only after three patches is there something to choose, when looking is not allowed.
    first, second = calls_of(model, "Decision")[0], calls_of(model, "Summary")
    assert first.sampling.choices == ("patch", "stop")
    assert len(second) == 1
    assert "Leader: patch" in second[0].text
    assert "What next?" not in second[0].text
    assert "So far: some words of minutes" in first.messages[1].content


@needs_tools
async def test_a_server_without_grammars_makes_the_run_fail_not_raise() -> None:
    model = ScriptedModel({"*": "Well."}, grammars=False)
    result = await arun(decision, COUNTER, [BUG], Rules(patches=1), model=model)
    assert result.best is None
    assert [node.failure for node in result.tree.nodes if node.status == "dead"] == [agents.NOT_OFFERED]


@needs_tools
async def test_the_waveform_ends_with_the_failing_check() -> None:
    simulation = await agents.simulate(BUG.source, COUNTER.testbench, vcd=True)
    failure = prompts.first_failure(simulation)
    assert failure is not None
    assert simulation.vcd is not None
    names = agents.inner_signals(simulation.vcd)
    assert {"clk", "count", "at_top", "stepped"} <= set(names)
    head, *rows = waveform(simulation.vcd, names, [failure.signal, "at_top"], failure.time).splitlines()
    assert head.split()[:3] == ["time", f"dut.{failure.signal}", "dut.at_top"]
    assert len(rows) <= 12
    assert int(rows[-1].split()[0]) <= failure.time
    # What the testbench compares is there: the value that it got.
    assert int(rows[-1].split()[1], 16) == int(failure.got, 16)


@needs_tools
@pytest.mark.parametrize("design", all_designs(), ids=lambda design: design.name)
async def test_the_viewer_is_offered_signals_of_the_design_only(design: Design) -> None:
    simulation = await agents.simulate(design.source, design.testbench, vcd=True)
    assert simulation.vcd is not None
    names = agents.inner_signals(simulation.vcd)
    assert names == {name: f"dut.{name}" for name in names}
    assert {f"testbench.{name}" for name in names.values()} <= set(signals(simulation.vcd))
    # Whatever the testbench may find wrong is a port, and must not be missing from the waveform.
    top = design.source[design.source.index(f"module {design.top}") :]
    ports = re.findall(r"^ *(?:input|output)\b.*?(\w+),?$", top, re.MULTILINE)
    assert len(ports) >= 3
    assert set(ports) < set(names)


def simulation(failures: int, checks: int = 10, log: str = "") -> Simulation:
    return Simulation(True, failures == 0 and checks > 0, checks, failures, log, None)


def test_only_a_patch_that_makes_things_better_is_kept() -> None:
    case = Case("a\nb\n", simulation(5))
    assert "undone" in case.settle(Edit(1, "c"), "c\nb\n", simulation(5))
    assert "undone" in case.settle(Edit(1, "d"), "d\nb\n", simulation(0, checks=0))
    assert (case.source, case.tried, case.patches) == ("a\nb\n", [Edit(1, "c"), Edit(1, "d")], 2)
    assert "kept" in case.settle(Edit(2, "e"), "a\ne\n", simulation(4))
    assert (case.source, case.tried, case.undone, case.made) == ("a\ne\n", [], None, [Edit(2, "e")])
    assert case.result.failing_share == 0.4


def test_what_may_be_chosen() -> None:
    case = Case("", simulation(1))
    assert offered(Rules(patches=9), case, {}) == ["view", "search"]
    assert offered(Rules(patches=9), case, {"search": ""}) == ["view"]
    assert offered(Rules(patches=9), case, {"search": "", "view": ""}) == ["patch"]
    assert offered(Rules(patches=9, lookups=1), case, {}) == ["view"]
    assert offered(Rules(patches=9), case, {"view": ""}) == ["search", "lint", "patch"]
    assert offered(Rules(patches=9), case, {"view": "", "lint": ""}) == ["patch"]
    case.patches = 3
    assert offered(Rules(patches=9, lookups=0, keep_going=True), case, {}) == ["patch", "stop"]


def test_outcomes_in_words() -> None:
    log = "FAIL 35 count expected b got 1\nFAIL 45 count expected a got 2\n"
    assert prompts.outcome(simulation(2, log=log)) == (
        "2 of 10 checks fail, the first one at time 35 count is 1, not b."
    )
    assert prompts.outcome(simulation(2)) == "2 of 10 checks fail."
    assert prompts.outcome(simulation(0)) == "All 10 checks pass."
    assert prompts.outcome(simulation(0, checks=0)) == "The simulation does not come to its end."
    assert prompts.outcome(Simulation(False, False, 0, 0, "", None)) == "The design does not compile."


def test_the_library_is_bounded() -> None:
    passages = [agents.search("clock", {"text": f"clock {'x' * 900}"})[0]] * 20
    asked = prompts.what_they_say(passages)
    assert prompts.LIBRARY_CHARS * 0.8 < len(asked) < prompts.LIBRARY_CHARS + 100
    assert "Nothing was found" in prompts.what_they_say([])
