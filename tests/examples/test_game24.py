"""The example plays by the rules whatever the model says, and its command reports what happened."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner, Result

from examples.game24 import __main__ as example
from examples.game24 import program, prompts
from examples.game24.players import Player
from examples.game24.puzzles import puzzles
from examples.game24.random_baseline import random_model
from examples.game24.rules import (
    Numbers,
    apply_step,
    is_solved,
    legal_steps,
    numbers_of,
    parse_step,
    show,
    solve,
)
from examples.game24.summary import judge, summarise, table
from hive import Completion, ModelError, Request, TreeOfThoughts, run
from hive.server.server_process import ServerProcess
from hive.testing import ScriptedModel

PUZZLE = puzzles(900, 901)[0]
SEARCH = TreeOfThoughts(branch_at="propose", branching=2, breadth=2)


def position(request: Request) -> Numbers:
    """The numbers that a request asks about: those whose prompt it carries."""
    numbers = prompts.position(request.text)
    if request.agent == "proposer":
        assert request.text in (prompts.propose(numbers), prompts.propose_role(numbers))
    return numbers


def oracle(request: Request) -> str:
    """Proposes the first step of a solution, and is sure of everything."""
    if request.agent == "valuer":
        return "sure"
    steps = solve(position(request))
    assert steps
    return f"{steps[0]} "  # as a server sends it, with the stop string cut off


def fool(request: Request) -> str:
    """Takes a legal step after which 24 cannot be reached, and is right about it."""
    if request.agent == "valuer":
        return "impossible"
    numbers = position(request)
    step = next(step for step in legal_steps(numbers) if solve(apply_step(numbers, step)) is None)
    assert re.fullmatch(request.sampling.regex or "", f"{step} =")
    return f"{step} ="


def test_a_model_that_knows_the_solution_solves_the_puzzle() -> None:
    model = ScriptedModel(oracle)
    result = run(program.game24, PUZZLE.numbers, 2, model=model, supervisor=SEARCH, seed=1)
    assert result.value is not None
    numbers = PUZZLE.numbers
    for line in result.value:
        numbers = apply_step(numbers, parse_step(line.split("=")[0]))
        assert line.endswith(f"(left: {show(numbers)})")
    assert is_solved(numbers)
    # 2 + 2 * 2 + 2 * 2 proposals; two votes on each position that is not final.
    assert result.totals.agents["proposer"].requests == 10
    assert result.totals.agents["valuer"].requests == 2 * 6
    assert {call.agent for call in model.calls} == {"proposer", "valuer"}


def test_roles_are_asked_in_their_own_words() -> None:
    model = ScriptedModel(oracle)
    result = run(program.game24, PUZZLE.numbers, 1, Player.ROLES, 0.5, model=model, supervisor=SEARCH, seed=1)
    assert result.value is not None
    for call in model.calls:
        numbers = position(call)
        words = prompts.propose_role if call.agent == "proposer" else prompts.value_role
        assert call.prompt == words(numbers)
        assert call.sampling.temperature == (0.5 if call.agent == "proposer" else 1.0)


def test_a_model_that_plays_badly_solves_nothing() -> None:
    result = run(program.game24, PUZZLE.numbers, 1, model=ScriptedModel(fool), supervisor=SEARCH, seed=1)
    assert result.best is None
    assert all(
        (node.failure or "").startswith("ends in ") for node in result.tree.nodes if node.status == "dead"
    )


@pytest.mark.parametrize("text", ["I think we should add.", "1 + 1 =", "", "99 * 2"])
def test_a_server_without_grammars_makes_branches_fail_not_the_run(text: str) -> None:
    result = run(program.game24, PUZZLE.numbers, model=ScriptedModel(lambda _: text), supervisor=SEARCH)
    assert result.best is None
    assert [node.status for node in result.tree.nodes] == ["expanded", "dead", "dead"]


def test_the_words_of_the_votes_add_up_to_the_score() -> None:
    words = iter(["sure", "likely", "impossible", "perhaps"])
    model = ScriptedModel(
        lambda request: oracle(request) if request.agent == "proposer" else next(words), grammars=False
    )
    once = TreeOfThoughts(branch_at="propose", branching=1, breadth=1)
    result = run(program.game24, PUZZLE.numbers, 2, model=model, supervisor=once)
    scores = [node.score for node in result.tree.nodes if node.name == "propose"]
    assert scores == [None, 21.0, 0.001]


def test_a_summary_adds_games_up_and_shows_both_arms() -> None:
    replaying = ScriptedModel(
        lambda request: Completion(text=oracle(request), tokens_generated=3, tokens_replayed=1)
    )
    games = [
        judge(puzzle, run(program.game24, puzzle.numbers, 1, model=model, supervisor=SEARCH), lots)
        for puzzle, model, lots in zip(
            puzzles(900, 902),
            (replaying, ScriptedModel(fool)),
            ([True, False, False, False], [False, True, True, False]),
            strict=True,
        )
    ]
    summary = summarise(games, search="tree of thoughts", supervisor=SEARCH, lots=4, seed=5)
    assert (summary.puzzles, summary.solved) == (2, 1)
    assert [game.solved for game in games] == [bool(game.steps) for game in games] == [True, False]
    assert summary.requests == 2 * (10 + 6) == sum(usage.requests for usage in summary.agents.values())
    assert summary.tokens_replayed == 16
    assert summary.wall_s == sum(game.totals.wall_s for game in games)
    assert (summary.random_solved, summary.random_expected) == (1, 0.75)
    assert summary.supervisor == repr(SEARCH)

    text = io.StringIO()
    Console(file=text, width=100).print(table(summary))
    rows = {cells[0]: cells[1:] for line in text.getvalue().splitlines() if (cells := _cells(line))}
    assert rows["tree of thoughts"][:2] == ["1/2", "32"]
    assert set(rows) >= {"arm", "proposer", "valuer", "random"}
    assert rows["random"][0] == f"{summary.random_solved}/2"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]


def command(monkeypatch: pytest.MonkeyPatch, script: Callable[[Request], str], *arguments: str) -> Result:
    """Run the command against a scripted model."""
    monkeypatch.setattr(example, "at_server", lambda url, player, **_: ScriptedModel(script))
    app = Typer()
    app.command()(example.main)
    return CliRunner().invoke(app, ["--url", "http://scripted", *arguments])


def test_the_command_writes_summary_and_trees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = tmp_path / "deep" / "report.json"
    result = command(
        monkeypatch, oracle, *("--puzzles", "2", "--first", "900", "--branching", "2", "--breadth", "2"),
        *("--votes", "1", "--lots", "3", "--seed", "7", "--out", str(tmp_path / "out"), "--json", str(report)),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    summary = json.loads(report.read_text())
    assert (
        summary.items()
        >= {"puzzles": 2, "solved": 2, "requests": 32, "tokens_replayed": 0, "seed": 7}.items()
    )
    assert summary["tokens_generated"] > 0
    assert summary["wall_s"] > 0
    assert {name: usage["requests"] for name, usage in summary["agents"].items()} == {
        "proposer": 20,
        "valuer": 12,
    }
    assert 0 <= summary["random_solved"] <= 2
    assert [game["rank"] for game in summary["games"]] == [900, 901]
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary
    for rank in (900, 901):
        assert "<svg" in (tmp_path / "out" / f"tree-{rank}.html").read_text()
    assert "tree of thoughts" in result.output
    assert "2/2" in result.output
    assert str(PUZZLE) in result.output


@pytest.mark.parametrize(
    ("search", "arm", "proposals"),
    [("mcts", "MCTS", range(3, 16)), ("best-of-n", "best of n", range(15, 16))],
)
def test_the_command_knows_other_searches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, search: str, arm: str, proposals: range
) -> None:
    result = command(
        monkeypatch, oracle, *("--puzzles", "1", "--first", "900", "--search", search, "--proposals", "15"),
        *("--branching", "2", "--votes", "1", "--lots", "2", "--out", str(tmp_path)),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["solved"], summary["search"]) == (1, arm)
    assert summary["agents"]["proposer"]["requests"] in proposals
    assert arm in result.output


@pytest.mark.parametrize("search", program.Algorithm)
def test_all_searches_propose_alike_whoever_proposes(search: program.Algorithm) -> None:
    """Without a solution, so that none ends before its budget does: what is asked is the program's doing."""
    hopeless = numbers_of((1, 1, 1, 1))
    supervisor = program.supervisor_of(search, branching=5, breadth=3, proposals=program.PROPOSALS)
    lot = run(program.game24, hopeless, 1, model=random_model(), supervisor=supervisor, seed=1)
    model = run(program.game24, hopeless, 1, model=ScriptedModel(any_step), supervisor=supervisor, seed=1)
    assert lot.best is model.best is None
    counts = [result.totals.agents["proposer"].requests for result in (lot, model)]
    assert counts[0] == counts[1]
    assert counts[0] in range(33, 36)


def any_step(request: Request) -> str:
    """The same words as the random baseline's, otherwise drawn."""
    if request.agent == "valuer":
        return "likely"
    steps = legal_steps(position(request))
    return str(steps[request.sample % len(steps)])


@pytest.mark.parametrize(
    ("status", "says", "hint"),
    [(None, "nobody listens", True), (401, "wrong key", False)],
)
def test_a_server_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int | None, says: str, hint: bool
) -> None:
    def refuse(_: Request) -> str:
        raise ModelError(says, status=status)

    result = command(monkeypatch, refuse, "--out", str(tmp_path))
    assert result.exit_code == 1
    last = result.output.strip().splitlines()[-1]
    assert last.startswith(f"game24: {says}")
    assert ("hive.launch_server" in last) == hint


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--first", "1361", "--puzzles", "2"], "1362 puzzles"),
        (["--puzzles", "0"], "--puzzles"),
        (["--url", "localhost"], "must look like"),
    ],
)
def test_bad_options_are_named(arguments: list[str], complaint: str) -> None:
    app = Typer()
    app.command()(example.main)
    result = CliRunner().invoke(app, ["--url", "http://scripted", *arguments])
    assert result.exit_code == 2
    assert complaint in re.sub(r"[\s│]+", " ", result.output)


@pytest.mark.server
@pytest.mark.parametrize(
    ("search", "flags"),
    [
        ("tot", ["--branching", "2", "--breadth", "1"]),
        ("mcts", ["--branching", "2", "--proposals", "6"]),
        ("best-of-n", ["--proposals", "6"]),
    ],
)
def test_on_the_real_server(search: str, flags: list[str], server: ServerProcess, tmp_path: Path) -> None:
    app = Typer()
    app.command()(example.main)
    result = CliRunner().invoke(
        app,
        [
            *("--url", server.url, "--search", search, "--puzzles", "1", "--votes", "1", "--lots", "2"),
            *("--seed", "3", "--out", str(tmp_path), *flags),
        ],
    )
    assert result.exit_code == 0, result.output
    print(result.output)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert 2 <= summary["agents"]["proposer"]["requests"] <= 6
    # The grammar holds: a branch ends at the end of a game, never at a step that is none.
    assert "not a step" not in (tmp_path / "tree-0.html").read_text()
