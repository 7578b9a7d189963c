"""The example plays by the rules whatever the model says, and its command reports what happened."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner, Result

from bench.game24 import prompts
from bench.game24.puzzles import puzzles
from bench.game24.random_arm import Shape
from bench.game24.rules import (
    Numbers,
    apply_step,
    is_solved,
    legal_steps,
    numbers_of,
    parse_step,
    show,
    solve,
)
from bench.game24.summary import judge, summarise, table
from examples import game24
from hive import Completion, ModelError, Request, TreeOfThoughts, run
from hive.testing import ScriptedModel

PUZZLE = puzzles(900, 901)[0]
SEARCH = TreeOfThoughts(branch_at="propose", branching=2, breadth=2)


def position(request: Request) -> Numbers:
    """The numbers that a request asks about: those whose prompt it carries."""
    if request.agent == "valuer":
        return numbers_of(map(Fraction, request.text.split()))
    numbers = numbers_of(map(Fraction, re.findall(r"[\d/]+", request.text.splitlines()[-1])))
    assert request.text == prompts.propose(numbers)
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
    result = run(game24.game24, PUZZLE.numbers, 2, model=model, supervisor=SEARCH, seed=1)
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


def test_a_model_that_plays_badly_solves_nothing() -> None:
    result = run(game24.game24, PUZZLE.numbers, 1, model=ScriptedModel(fool), supervisor=SEARCH, seed=1)
    assert result.best is None
    assert all(
        (node.failure or "").startswith("ends in ") for node in result.tree.nodes if node.status == "dead"
    )


@pytest.mark.parametrize("text", ["I think we should add.", "1 + 1 =", "", "99 * 2"])
def test_a_server_without_grammars_makes_branches_fail_not_the_run(text: str) -> None:
    result = run(game24.game24, PUZZLE.numbers, model=ScriptedModel(lambda _: text), supervisor=SEARCH)
    assert result.best is None
    assert [node.status for node in result.tree.nodes] == ["expanded", "dead", "dead"]


def test_the_words_of_the_votes_add_up_to_the_score() -> None:
    words = iter(["sure", "likely", "impossible", "perhaps"])
    model = ScriptedModel(lambda request: oracle(request) if request.agent == "proposer" else next(words))
    once = TreeOfThoughts(branch_at="propose", branching=1, breadth=1)
    result = run(game24.game24, PUZZLE.numbers, 2, model=model, supervisor=once)
    scores = [node.score for node in result.tree.nodes if node.name == "propose"]
    assert scores == [None, 21.0, 0.001]


def test_a_summary_adds_games_up_and_shows_both_arms() -> None:
    shape = Shape(branching=2, breadth=2)
    replaying = ScriptedModel(
        lambda request: Completion(text=oracle(request), tokens_generated=3, tokens_replayed=1)
    )
    games = [
        judge(puzzle, run(game24.game24, puzzle.numbers, 1, model=model, supervisor=SEARCH), shape, seed=5)
        for puzzle, model in zip(puzzles(900, 902), (replaying, ScriptedModel(fool)), strict=True)
    ]
    summary = summarise(games, shape, seed=5)
    assert (summary.puzzles, summary.solved) == (2, 1)
    assert [game.solved for game in games] == [bool(game.steps) for game in games] == [True, False]
    assert summary.requests == 2 * (10 + 6) == sum(usage.requests for usage in summary.agents.values())
    assert summary.tokens_replayed == 16
    assert summary.wall_s == sum(game.totals.wall_s for game in games)
    assert summary.random_expected == pytest.approx(sum(game.random_share for game in games))
    again = summarise(games, shape, seed=5)
    assert again == summary

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
    monkeypatch.setattr(game24, "HttpClient", lambda url, api_key: ScriptedModel(script))
    app = Typer()
    app.command()(game24.main)
    return CliRunner().invoke(app, ["--url", "http://scripted", *arguments])


def test_the_command_writes_summary_and_trees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = tmp_path / "deep" / "report.json"
    result = command(
        monkeypatch, oracle, *("--puzzles", "2", "--first", "900", "--branching", "2", "--breadth", "2"),
        *("--votes", "1", "--seed", "7", "--out", str(tmp_path / "out"), "--json", str(report)),
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
        (["--url", "localhost"], "looks like"),
    ],
)
def test_bad_options_are_named(arguments: list[str], complaint: str) -> None:
    app = Typer()
    app.command()(game24.main)
    result = CliRunner().invoke(app, ["--url", "http://scripted", *arguments])
    assert result.exit_code == 2
    assert complaint in re.sub(r"[\s│]+", " ", result.output)
