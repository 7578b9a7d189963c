"""Methods and what they may spend, the random baseline, the report, and the command."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from bench.rtl_repair import __main__ as command
from bench.rtl_repair.methods import Method, Shape, repair, scores, session
from bench.rtl_repair.report import RANDOM, Report, row_of, shares, table
from bench.traces.recording import RecordingModel, load_trace
from bench.training.rtl import taught
from examples.random_model import random_model
from examples.rtl_repair import prompts
from examples.rtl_repair.bugs import Bug, suite
from examples.rtl_repair.designs import all_designs, design
from examples.rtl_repair.edits import apply
from examples.rtl_repair.simulator import simulate
from examples.rtl_repair.tools import ToolsMissing, missing_tools
from hive import Case, Evaluation, HttpClient, Request, Totals, Usage, aevaluate
from hive.server.server_process import ServerProcess
from hive.testing import FunctionModel

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))

SMALL = Shape(branching=3, breadth=2, rounds=2)


async def bugs_of_counter(count: int) -> list[Bug]:
    return await suite(count, 0, [design("counter")])


def oracle(bug: Bug) -> FunctionModel:
    """A model that knows what repairs a bug."""

    def answer(request: Request) -> str:
        choices = request.sampling.choices
        right = [text for text in (str(bug.line), bug.original, "patch") if text in choices]
        return right[0] if right else next(iter(choices), "words")

    return FunctionModel(answer)


def test_methods_may_try_equally_many_patches() -> None:
    shape = Shape(branching=4, breadth=2, rounds=3)
    assert shape.patches == 4 + 8 + 8
    assert {method: shape.budget(method) for method in Method} == {
        Method.DIRECT: 1,
        Method.WORKFLOW: 20,
        Method.BEST_OF_N: 20,
        Method.TOT: 20,
        Method.MCTS: 20,
    }


@needs_tools
@pytest.mark.parametrize("method", Method)
async def test_every_method_repairs_with_a_model_that_knows(method: Method) -> None:
    (bug,) = await bugs_of_counter(1)
    result = await repair(bug, method=method, shape=SMALL, model=oracle(bug), seed=1)
    found = scores(bug, result)
    assert found["solved"]
    # Searches stop between batches.
    batch = {Method.BEST_OF_N: 3, Method.TOT: 3, Method.MCTS: 4}
    assert found["patches"] <= batch.get(method, 1)
    assert {"Decision", "Patcher"} <= set(result.totals.agents)


@needs_tools
@pytest.mark.parametrize("method", Method)
async def test_a_method_that_finds_nothing_uses_its_budget_up(method: Method) -> None:
    (bug,) = await bugs_of_counter(1)

    def never_right(request: Request) -> str:
        return next(choice for choice in request.sampling.choices if choice != str(bug.line))

    model = FunctionModel(never_right)
    result = await repair(bug, method=method, shape=SMALL, model=model, seed=1, lookups=0)
    assert scores(bug, result) == {"solved": False, "patches": SMALL.budget(method)}


@needs_tools
async def test_at_random_some_bugs_are_repaired_and_always_the_same_ones() -> None:
    bugs = await bugs_of_counter(3)
    wide = Shape(branching=12, breadth=2, rounds=2)
    program = partial(repair, method=Method.TOT, shape=wide, model=None)
    first, again = [
        await aevaluate(program, bugs, scores, seed=1, repeat=3, concurrency=16, on_error="raise")
        for _ in range(2)
    ]
    assert [case.scores for case in first.cases] == [case.scores for case in again.cases]
    assert [case.item for case in first.cases] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert 0 < sum(case.scores["solved"] for case in first.cases) < len(first.cases)
    assert all(case.scores["patches"] <= wide.patches for case in first.cases)
    # Nobody is asked but the Patcher.
    assert set(first.totals.agents) == {"Patcher"}


@needs_tools
async def test_what_is_said_to_be_repaired_passes_its_testbench() -> None:
    bugs = await bugs_of_counter(2)
    repaired = 0
    for seed in range(20):
        result, outcome = await session(bugs, random_model(), rounds=15, seed=seed)
        assert result.session
        assert outcome.patches <= 15
        for place, edits in outcome.repairs.items():
            source = bugs[place].source
            for edit in edits:
                source = apply(source, edit)
            assert (await simulate(source, design("counter").testbench)).passed
            repaired += 1
    assert repaired


def tried(bugs: list[Bug], agents: list[dict[str, Usage]], lots: int) -> Evaluation:
    """Searches of which those of the first bug succeed."""
    return Evaluation(
        name="tried",
        cases=[
            Case(
                arm="tried",
                item=item,
                repetition=repetition,
                seed=0,
                scores={"solved": item == 0, "patches": 3},
                started=item,
                seconds=2,
                usage=Totals(agents=agents[item]),
            )
            for item in range(len(bugs))
            for repetition in range(lots)
        ],
    )


def test_rows_and_the_table() -> None:
    bugs = [Bug("counter", "off_by_one", line, "a", "b", "") for line in (1, 2)]
    usage = Usage(requests=2, tokens_generated=5, tokens_replayed=1)
    agents = [{"Viewer": usage, "Patcher": usage}, {"Patcher": usage}]
    row = row_of("small", Method.TOT, tried(bugs, agents, 1), bugs, 12)
    assert (row.model, row.method, row.tasks, row.solved, row.rate) == ("small", "tot", 2, 1, 0.5)
    assert (row.requests, row.tokens_generated, row.tokens_replayed, row.patches) == (6, 15, 3, 6)
    assert row.agents["Patcher"].requests == 4
    assert row.wall_s == 3
    assert [(task.bug, task.solved) for task in row.by_task] == [(0, True), (1, False)]
    lots = row_of(RANDOM, Method.TOT, tried(bugs, agents, 2), bugs, 12)
    assert (lots.method, lots.search, lots.tasks, lots.solved, lots.requests) == ("random", "tot", 4, 2, 0)
    report = Report(
        command="c", versions={}, machine={}, model="small", seconds=1, seed=0, sessions=1, lookups=2, left_out=0,
        bugs=[], rows=[row, lots],
    )  # fmt: skip
    console = Console(width=160, record=True)
    console.print(table(report))
    text = console.export_text()
    assert "random (tot)" in text
    assert "1/2" in text
    assert [(one.method, one.player, one.share) for one in shares(report)] == [
        ("tot", "small", 0.5),
        ("tot", "random", 0.5),
    ]


def test_without_tools_the_command_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"bench: not found on PATH: iverilog.*apt-get install"):
        command.main(["--json", str(tmp_path / "report.json"), "--url", "http://127.0.0.1:1"])


NUMBERS = ("--bugs", "--branching", "--breadth", "--rounds", "--sessions", "--lookups", "--lots")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        *(
            ([option, number], f"{option}: must be at least 1")
            for option in NUMBERS
            for number in ("0", "-2")
        ),
        (["--rounds", "two"], "argument --rounds: invalid positive value: 'two'"),
        (["--methods", "luck"], "invalid choice: 'luck' (choose from 'direct', 'workflow', 'best_of_n', "),
        (["--keep-going", "--methods", "tot"], "--keep-going compares nothing: leave out --methods"),
        (
            ["--keep-going", "--quick", "--lots", "2"],
            "--keep-going compares nothing: leave out --quick, --lots",
        ),
        (["--json", "FOLDER"], "here cannot be written: Is a directory"),
        (["--json", "FILE/report.json"], "report.json cannot be written: Not a directory"),
        (["--json", "FILE/deep/report.json"], "report.json cannot be written: Not a directory"),
        (["--trace", "FOLDER"], "--trace may be a folder only with --keep-going"),
        (["--keep-going", "--trace", "run.json"], "--trace must end in .json.xz"),
        (["--trace", "FILE/run.json.xz"], "run.json.xz cannot be written: Not a directory"),
    ],
)
def test_wrong_options_are_told_before_anything_is_started(
    wrong: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "require_tools", lambda: pytest.fail("began"))
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    places = {"FOLDER": str(tmp_path / "here"), "FILE": str(tmp_path / "file")}
    given = [re.sub("FOLDER|FILE", lambda match: places[match[0]], text) for text in wrong]
    with pytest.raises(SystemExit) as exit_:
        command.main(["--json", str(tmp_path / "report.json"), *given])
    assert exit_.value.code == 2
    usage, _, error = capsys.readouterr().err.rpartition("python -m bench.rtl_repair: error: ")
    assert usage.startswith("usage: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_a_report_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--quick"])
    assert "the following arguments are required: --json" in capsys.readouterr().err


def test_missing_folders_are_made_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, trace = tmp_path / "some" / "report.json", tmp_path / "other" / "run.json.xz"

    def tools() -> None:
        assert report.parent.is_dir()
        assert trace.parent.is_dir()
        # An empty file would be taken for a trace.
        assert not [*report.parent.iterdir(), *trace.parent.iterdir()]
        raise ToolsMissing(["vvp"])

    monkeypatch.setattr(command, "require_tools", tools)
    with pytest.raises(SystemExit, match="bench: not found on PATH: vvp"):
        command.main(["--json", str(report), "--trace", str(trace)])


@needs_tools
def test_nobody_replays_what_others_have_paid_for_and_no_bug_was_taught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def at_server(player: command.Player, url: str, tenant: str | None = None) -> FunctionModel:
        assert tenant is not None
        asked.append(tenant)
        return random_model()

    monkeypatch.setattr(command.Player, "at_server", at_server)
    monkeypatch.setattr(command, "served_model", lambda url: "small")
    report = tmp_path / "report.json"
    options = ["--url", "http://127.0.0.1:1", "--bugs", "4", "--seed", "1", "--lots", "1", "--lookups", "1"]
    options += ["--methods", "direct", "best_of_n", "best_of_n", "--branching", "1", "--rounds", "1"]
    command.main(["--json", str(report), *options])
    content = json.loads(report.read_text())
    assert [(row["model"], row["method"]) for row in content["rows"]] == [
        (model, "random" if model == "random" else method)
        for method in ("direct", "best_of_n")
        for model in ("small + roles", "small", "random")
    ]
    assert {row["tasks"] for row in content["rows"]} == {4}
    assert len(set(asked)) == 4
    lessons = {(each.bug.design, each.bug.line, each.bug.mutated) for each in taught()}
    bugs = {(bug["design"], bug["line"], bug["mutated"]) for bug in content["bugs"]}
    assert len(bugs) == 4
    assert bugs.isdisjoint(lessons)
    # Without that there would be some, with this seed.
    any_bugs = asyncio.run(suite(4, 1))
    assert not lessons.isdisjoint({(bug.design, bug.line, bug.mutated) for bug in any_bugs})


@needs_tools
async def test_long_sessions_have_as_many_rounds_as_they_are_said_to() -> None:
    first = all_designs()[0]
    bugs = await suite(command.BUGS_PER_SESSION, 0, [first])

    def repairs_at_once(request: Request) -> str:
        told = "".join(message.content for message in request.messages)
        read = [bug for bug in bugs if prompts.listing(bug.source) in told]
        right = {"patch", *(str(bug.line) for bug in read), *(bug.original for bug in read)}
        choices = request.sampling.choices
        return next((choice for choice in choices if choice in right), next(iter(choices), "words"))

    # More than a session has bugs: it takes them up once more.
    rounds = len(bugs) + 3
    settings = command.Settings(
        bugs=1,
        players=[command.Player.BASE],
        methods=[],
        shape=Shape(rounds=rounds),
        lookups=1,
        sessions=1,
        lots=1,
        seed=0,
        deadline=None,
    )
    some, (row,) = await command.keep_going(FunctionModel(repairs_at_once), "small", settings)
    assert some == bugs
    assert (row.method, row.patches, row.patches_allowed, row.tasks, row.solved) == ("session", *[rounds] * 4)


@pytest.mark.long
@needs_tools
@pytest.mark.server
def test_the_command_on_the_real_server(server: ServerProcess, tmp_path: Path) -> None:
    report, trace = tmp_path / "report.json", tmp_path / "trace.json.xz"
    options = ["--url", server.url, "--methods", "best_of_n", "--branching", "2", "--rounds", "1"]
    command.main(["--json", str(report), *options, "--bugs", "1", "--lots", "3", "--trace", str(trace)])
    content = json.loads(report.read_text())
    model, lots = content["rows"]
    assert (model["method"], model["tasks"], model["patches"]) == ("best_of_n", 1, 2)
    assert (lots["method"], lots["search"], lots["tasks"], lots["patches"]) == ("random", "best_of_n", 3, 6)
    assert model["patches_allowed"] == lots["patches_allowed"] == 2
    assert {"Decision", "Patcher"} <= set(model["agents"])
    assert model["tokens_generated"] > 0
    requests = load_trace(trace).requests
    assert len(requests) == model["requests"]
    # The agents' system prompts are shared: two requests of one agent begin alike.
    patcher = [request for request in requests if request.agent == "Patcher"]
    assert patcher[0].prompt[:200] == patcher[-1].prompt[:200]


@pytest.mark.long
@needs_tools
@pytest.mark.server
def test_a_recording_of_the_real_server_is_named_after_its_shape(
    server: ServerProcess, tmp_path: Path
) -> None:
    shape = ["--keep-going", "--sessions", "2", "--rounds", "1"]
    command.main(
        ["--url", f"{server.url}/", *shape, "--json", str(tmp_path / "run.json"), "--trace", str(tmp_path)]
    )
    (row,) = json.loads((tmp_path / "run.json").read_text())["rows"]
    requests = load_trace(tmp_path / "repair-2x1.json.xz").requests
    assert (row["patches"], row["requests"]) == (2, len(requests))
    # Each patch takes the Patcher a line and its text.
    patcher = Counter(request.session for request in requests if request.agent == "Patcher")
    assert patcher == {"s0": 2, "s1": 2}


@pytest.mark.long
@needs_tools
@pytest.mark.server
async def test_a_long_session_on_the_real_server(server: ServerProcess) -> None:
    model = RecordingModel(HttpClient(server.url))
    _, outcome = await session(await bugs_of_counter(2), model, rounds=2, seed=3)
    await model.aclose()
    assert outcome.patches <= 2
    assert outcome.patches == 2 or len(outcome.repairs) == 2
    assert {request.session for request in model.trace().requests} == {"s0"}
