"""A run against stand-ins for the servers: whose turn it is when, and what the report makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from bench.game24.methods import Shape
from bench.harness.memory import ServerMemory
from bench.peers import __main__ as bench
from bench.peers import servers
from bench.peers.arms import ArmName, WorkloadName
from bench.peers.report import Report, ratios_table, rows_table
from bench.peers.servers import gpu_defaults
from bench.peers.session import Session, Settings
from bench.peers.turns import Game, Repairs
from bench.training.rtl import HELD_OUT
from examples.rtl_repair.tools import ToolsMissing, missing_tools
from hive.server.server_process import ServerDied
from tests.bench.peers_server import stand_in
from tests.bench.test_peers_analysis import turn

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))

SETTINGS = Settings(
    shape=Shape(branching=2, breadth=1, votes=1),
    puzzles=3,
    at_once=2,
    sessions=2,
    patches=3,
    lookups=1,
    repair_blocks=2,
    seed=0,
)
ARMS: list[ArmName] = ["stock", "asyncio", "n_k"]


async def test_all_arms_take_their_turn_in_every_block() -> None:
    session = Session(SETTINGS, Console(quiet=True))
    async with stand_in() as server:
        await session.run({"stock": server.url}, {"tot": ["hive", *ARMS], "best_of_n": ARMS}, None)
        paths = [request.path.partition("?")[0] for request in server.received]
    assert list(session.turns) == ["tot", "best_of_n"]
    # Hive's server is not there; of the others none is left out.
    assert session.left_out == {}
    for turns in session.turns.values():
        assert set(turns) == set(ARMS)
        for each in turns.values():
            assert [(turn.block, turn.score.tasks) for turn in each] == [(0, 2), (1, 1)]
            assert all(turn.computed is not None and turn.computed.prefilled > 0 for turn in each)
    # Every turn begins with cold caches: two workloads, two blocks, three arms.
    assert paths.count("/flush_cache") == 12
    assert paths.count("/metrics") == 24
    rows = session.rows()
    assert [(row.workload, row.arm) for row in rows] == [
        (w, arm) for w in ("tot", "best_of_n") for arm in ARMS
    ]
    assert rows[0].requests == rows[1].requests > rows[2].requests
    assert rows[0].tokens_computed == rows[1].tokens_computed
    assert all(row.model_bytes == 0.875 * 2**30 and row.device_bytes is None for row in rows)


async def test_a_block_is_not_begun_that_would_end_too_late() -> None:
    session = Session(SETTINGS, Console(quiet=True))
    async with stand_in() as server:
        await session.run({"stock": server.url}, {"tot": ["stock"]}, 0.0)
    assert [turn.block for turn in session.turns["tot"]["stock"]] == [0]
    assert session.left_out == {"tot, last 1 blocks": "there was no time"}


async def test_an_arm_that_fails_is_left_out_with_its_turns() -> None:
    session = Session(SETTINGS, Console(quiet=True))
    async with stand_in() as server:
        good = server.routes["POST /generate"]
        flushes = 0

        def generate(request):  # type: ignore[no-untyped-def]
            if flushes >= 3 and "n" in request.body["sampling_params"]:
                return 500, {"error": {"message": "out of order"}}
            return good(request)

        def flush(request):  # type: ignore[no-untyped-def]
            nonlocal flushes
            flushes += 1
            return 200, {}

        server.routes |= {"POST /generate": generate, "POST /flush_cache*": flush}
        await session.run({"stock": server.url}, {"tot": ARMS}, None)
    assert set(session.turns["tot"]) == {"stock", "asyncio"}
    assert all(len(turns) == 2 for turns in session.turns["tot"].values())
    assert "out of order" in session.left_out["n_k, tot"]


@needs_tools
async def test_the_tasks_of_a_run() -> None:
    blocks = SETTINGS.games("mcts")
    assert [len(block.puzzles) for block in blocks if isinstance(block, Game)] == [2, 1]
    assert SETTINGS.games("mcts") == blocks
    one, two = await SETTINGS.repairs()
    assert isinstance(one, Repairs)
    assert isinstance(two, Repairs)
    assert [len(bugs) for bugs in one.sessions] == [3, 3]
    designs = {bugs[0].design for block in (one, two) for bugs in block.sessions}
    assert len(designs) == 4
    # The Patcher's lessons were about nearly all bugs of the others.
    assert designs <= HELD_OUT
    assert one.seed != two.seed


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "on_cpu", lambda: True)

    async def run(session: Session, urls: object, chosen: dict[str, list[ArmName]], deadline: object) -> None:
        assert urls == {"stock": "http://stock", "hive": "http://hive"}
        assert chosen == {"best_of_n": ["hive", "stock", "asyncio"]}
        async with stand_in() as server:
            await real(session, {"stock": server.url, "hive": server.url}, chosen, None)  # type: ignore[arg-type]

    real = Session.run
    monkeypatch.setattr(Session, "run", run)
    monkeypatch.setattr(bench, "served_model", lambda url: "model")
    options = {"--only": "best_of_n", "--puzzles": "3", "--at-once": "1", "--branching": "2"}
    arguments = [word for option in options.items() for word in option]
    arguments += ["--arms", "hive", "stock", "ngram", "asyncio"]
    urls = ["--hive-url", "http://hive/", "--stock-url", "http://stock"]
    bench.main(["--json", str(tmp_path / "deep" / "report.json"), *arguments, *urls])
    text = (tmp_path / "deep" / "report.json").read_text()
    report = Report.model_validate_json(text)
    assert report.command.startswith("python -m bench.peers --json report.json --only best_of_n")
    assert str(tmp_path) not in text
    assert "://" not in text
    assert [row.arm for row in report.rows] == ["hive", "stock", "asyncio"]
    assert all(row.tasks == 3 and len(row.blocks) == 3 for row in report.rows)
    assert report.left_out == {"ngram": "SGLang's speculative decoding does not run on a CPU"}
    assert {each.figure for each in report.ratios} >= {"solved_per_minute", "tasks_per_minute", "step_p50_ms"}
    by_figure = {each.figure: each for each in report.ratios if each.other == "stock" and not each.best_peer}
    shown = by_figure["tasks_per_minute"]
    assert shown.low is not None
    assert shown.high is not None
    assert shown.value == pytest.approx(report.rows[0].tasks_per_minute / report.rows[1].tasks_per_minute)
    assert json.loads(text)["setting"]["shape"]["branching"] == 2
    assert rows_table(report).row_count == 3
    assert ratios_table(report).row_count == len(report.ratios)
    assert "Hive over others" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["--arms", "asyncio", "--only", "rtl"], "none of the --arms can be run here with --only rtl\n"),
        (["--arms", "ngram"], "; ngram: SGLang's speculative decoding does not run on a CPU\n"),
        (["--json", "."], "--json: . cannot be written: Is a directory\n"),
        (["--temperature", "0"], "argument --temperature: must be above 0 and below 100\n"),
        (["--branching", "0"], "argument --branching: must be at least 1, not 0\n"),
    ],
)
def test_wrong_options_are_told_before_anything_is_started(
    wrong: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "on_cpu", lambda: True)
    monkeypatch.setattr(bench, "running", lambda *_: pytest.fail("began"))
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--json", str(tmp_path / "report.json"), *wrong])
    assert capsys.readouterr().err.endswith(sentence)


def test_a_url_that_is_none_is_one_line(tmp_path: Path) -> None:
    options = ["--arms", "stock", "--only", "tot", "--stock-url", "localhost:30000"]
    with pytest.raises(SystemExit, match="bench: the URL of a server must look like"):
        bench.main(["--json", str(tmp_path / "report.json"), *options])


@needs_tools
def test_games_that_were_measured_outlive_the_servers_of_the_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(session: Session, part: dict[WorkloadName, list[ArmName]], *_: object) -> str:
        if "rtl" in part:
            raise ServerDied("hive: the server ended with status 1:\nout of memory")
        session.turns["tot"] = {"stock": [turn("stock", 0, 1, 20.0)]}
        return "small"

    monkeypatch.setattr(bench, "_measure", measure)
    report = tmp_path / "report.json"
    bench.main(["--only", "tot", "rtl", "--arms", "stock", "--json", str(report)])
    kept = Report.model_validate_json(report.read_text())
    assert [(row.workload, row.tasks, row.solved) for row in kept.rows] == [("tot", 2, 1)]
    assert kept.left_out == {"rtl": "hive: the server ended with status 1"}
    assert "out of memory" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="bench: hive: the server ended"):
        bench.main(["--only", "rtl", "--arms", "stock", "--json", str(report)])


def test_memory_is_that_of_the_server_and_its_children() -> None:
    child = "import time; print(flush=True); time.sleep(60)"
    parent = (
        "import socket, subprocess, sys; server = socket.create_server(('127.0.0.1', 0)); "
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
        "child.stdout.readline(); print(server.getsockname()[1], child.pid, flush=True); sys.stdin.read(); "
        "child.kill()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port, other = map(int, process.stdout.readline().split())
        held = ServerMemory(f"http://127.0.0.1:{port}").host_bytes()
        alone = [psutil.Process(pid).memory_info().rss for pid in (process.pid, other)]
        # This process is in the same session, and larger than both.
        assert held == pytest.approx(sum(alone), rel=0.05)
        process.communicate()
    assert ServerMemory(f"http://127.0.0.1:{port}").host_bytes() is None
    assert ServerMemory("http://elsewhere:80").host_bytes() is None


def test_flags_that_are_given_replace_those_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--mem-fraction-static=0.15", "--cuda-graph-max-bs", "64"]
    assert gpu_defaults(given, tmp_path) == ["--max-total-tokens", "131072", "--sleep-on-idle"]
    monkeypatch.setattr(servers, "LARGE_BYTES", 100)
    (tmp_path / "model.safetensors").write_bytes(bytes(101))
    assert gpu_defaults(given, tmp_path) == ["--max-total-tokens", "16384", "--sleep-on-idle"]


def test_adapters_that_do_not_fit_are_told_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "running", lambda *_: pytest.fail("began"))
    with pytest.raises(SystemExit, match=r"bench: .* has no \*\.safetensors to compare the adapter"):
        bench.main(["--json", str(tmp_path / "report.json"), "--only", "tot", "--model-path", str(tmp_path)])
