"""``python -m bench.game24`` from its options to its report."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.game24 import __main__ as command
from bench.game24.methods import Method
from bench.harness import servers
from examples.game24.players import Player
from examples.game24.random_baseline import random_model
from hive import ModelError, Request
from hive.server.server_process import ServerProcess
from hive.testing import FunctionModel

URL = ["--url", "http://127.0.0.1:1/"]


@pytest.fixture
def random_everywhere(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Player, dict[str, Any]]]:
    """All players give random answers; the players that were asked for."""
    asked: list[tuple[str, Player, dict[str, Any]]] = []

    def random_player(url: str, player: Player, **settings: Any) -> FunctionModel:
        asked.append((url, player, settings))
        return random_model()

    monkeypatch.setattr(command, "at_server", random_player)
    monkeypatch.setattr(command, "served_model", lambda url: "small")
    return asked


def run(tmp_path: Path, *options: str) -> dict[str, Any]:
    command.main(["--json", str(tmp_path / "report.json"), *options])
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    return report


def test_a_row_for_every_player_and_method_and_the_random_baseline(
    random_everywhere: list[tuple[str, Player, dict[str, Any]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = run(tmp_path, *URL, "--puzzles", "3", "--lots", "4", "--seed", "2", "--concurrency", "2")
    assert report["command"].startswith("python -m bench.game24 --json report.json --url URL --puzzles 3")
    methods = [str(method) for method in Method]
    assert [(row["model"], row["method"], row["search"]) for row in report["rows"]] == [
        *(("small + roles", method, method) for method in methods),
        *(("small", method, method) for method in methods),
        *(("random", "random", method) for method in methods),
    ]
    assert [row["proposals_allowed"] for row in report["rows"]] == [3, 35, 35, 35] * 3
    for row in report["rows"]:
        assert sorted(task["rank"] for task in row["by_task"]) == [900, 901, 902]
        assert row["solved"] == sum(task["solved"] for task in row["by_task"]) <= row["tasks"] == 3
        assert (row["requests"] == 0) == (row["model"] == "random")
        assert row["wall_s"] > 0
        assert all(task["proposals"] <= row["proposals_allowed"] for task in row["by_task"])
    assert (report["model"], report["left_out"], report["lots"], report["seed"]) == ("small", 0, 4, 2)
    assert "random (mcts)" in capsys.readouterr().out
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    # Nobody replays what others have paid for, and the likeliest step is not drawn at all.
    assert len({settings["tenant"] for _, _, settings in random_everywhere}) == 8
    assert [settings["distinct"] for _, _, settings in random_everywhere] == [False, True, True, True] * 2
    assert {url for url, _, _ in random_everywhere} == {"http://127.0.0.1:1"}


def test_the_same_seed_gives_the_same_report(random_everywhere: object, tmp_path: Path) -> None:
    # Who is named twice plays once.
    options = [*URL, "--puzzles", "4", "--first", "100", "--players", "base", "base"]
    options += ["--methods", "mcts", "mcts", "--lots", "2"]
    reports = [run(tmp_path, *options, "--seed", seed)["rows"] for seed in ("1", "1", "2")]
    assert [row["tasks"] for row in reports[0]] == [4, 4]
    for rows in reports:
        for row in rows:
            del row["wall_s"]
    assert reports[0] == reports[1] != reports[2]


def test_who_is_out_of_time_has_asked_all_methods_the_same(
    random_everywhere: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time for the first puzzles, and for no more of the same.
    monkeypatch.setattr(command, "RESERVE_S", 0.0)
    monkeypatch.setattr(command, "QUICK_MINUTES", 0.02)
    report = run(tmp_path, *URL, "--quick", "--concurrency", "2")
    tasks = {row["tasks"] for row in report["rows"]}
    assert len(tasks) == 1
    assert 0 < (played := tasks.pop()) < 100
    assert report["left_out"] == 100 - played
    ranks = [[task["rank"] for task in row["by_task"]] for row in report["rows"]]
    assert all(order == ranks[0] for order in ranks)


def test_a_run_without_any_time_says_so_in_its_report(
    random_everywhere: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUICK_MINUTES", 0.0)
    report = run(tmp_path, *URL, "--quick")
    assert report["left_out"] == 100
    assert {row["tasks"] for row in report["rows"]} == {0}


@pytest.mark.parametrize(("players", "flags"), [("roles", ["--roles"]), ("base", [])])
def test_it_starts_a_server_with_roles_if_these_play(
    players: str,
    flags: list[str],
    random_everywhere: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[object, ...]] = []

    @contextlib.contextmanager
    def server(*arguments: object) -> Iterator[dict[str, str]]:
        seen.append(arguments)
        yield {"hive": "http://127.0.0.1:2"}

    monkeypatch.setattr(servers, "started", server)
    monkeypatch.setattr(servers, "ensure_embedded_model", lambda: tmp_path)
    monkeypatch.setattr(servers, "lora_flags", lambda on_cpu: ["--roles"])
    run(tmp_path, "--players", players, "--methods", "direct", "--puzzles", "1", "--lots", "1")
    assert [arguments[:3] for arguments in seen] == [(["hive"], tmp_path, flags)]


def test_a_server_without_the_roles_is_one_line(
    random_everywhere: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Request) -> str:
        raise ModelError("model: http://127.0.0.1:1 has no 'proposer'; it has 'small'")

    monkeypatch.setattr(command, "at_server", lambda *_, **__: FunctionModel(refuse))
    with pytest.raises(SystemExit, match=r"bench: model: .* has no 'proposer'"):
        run(tmp_path, *URL, "--puzzles", "1")
    assert not (tmp_path / "report.json").exists()


NUMBERS = ("--puzzles", "--branching", "--breadth", "--votes", "--lots", "--concurrency")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        *(
            ([option, number], f"{option}: must be at least 1")
            for option in NUMBERS
            for number in ("0", "-2")
        ),
        (["--votes", "two"], "argument --votes: invalid positive value: 'two'"),
        (["--methods", "luck"], "invalid choice: 'luck' (choose from 'direct', 'best_of_n', 'tot', 'mcts')"),
        (["--players", "nobody"], "invalid choice: 'nobody' (choose from 'base', 'roles')"),
        (["--first", "1300"], "there are 1362 puzzles, of ranks 0 to 1361: --first 1300 --puzzles 100 asks"),
        (["--first", "-1"], "there are 1362 puzzles"),
        (["--temperature", "0"], "--temperature: must be above 0"),
        (["--temperature", "nan"], "--temperature: must be above 0"),
        (["--json", "FOLDER"], "here cannot be written: Is a directory"),
        (["--json", "FILE/report.json"], "report.json cannot be written: "),
    ],
)
def test_wrong_options_are_told_before_anything_is_started(
    wrong: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(servers, "started", lambda *_: pytest.fail("began"))
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    places = {"FOLDER": str(tmp_path / "here"), "FILE": str(tmp_path / "file")}
    given = [re.sub("FOLDER|FILE", lambda match: places[match[0]], text) for text in wrong]
    with pytest.raises(SystemExit) as exit_:
        command.main(["--json", str(tmp_path / "report.json"), *given])
    assert exit_.value.code == 2
    usage, _, error = capsys.readouterr().err.rpartition("python -m bench.game24: error: ")
    assert usage.startswith("usage: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_nobody_at_the_url_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"bench: http://127.0.0.1:1 does not answer"):
        run(tmp_path, *URL)


@pytest.mark.server
def test_the_command_on_the_real_server(server: ServerProcess, tmp_path: Path) -> None:
    began = time.monotonic()
    options = ["--players", "base", "--branching", "2", "--breadth", "1", "--votes", "1"]
    report = run(tmp_path, "--url", server.url, *options, "--first", "0", "--puzzles", "1", "--lots", "2")
    print(f"{time.monotonic() - began:.0f} s")
    models, lots = report["rows"][:4], report["rows"][4:]
    for row in models:
        assert 0 < row["proposals"] == row["agents"]["proposer"]["requests"] <= row["proposals_allowed"]
        assert row["tokens_generated"] > 0
        # The server hands out each proposal for a position once.
        assert row["duplicates"] == 0
    assert {row["method"] for row in lots} == {"random"}
