"""``python -m bench.kv_segments`` against a stand-in for the server: its report, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.kv_segments import __main__ as bench
from bench.kv_segments import servers
from bench.kv_segments.report import Report, Row, quality_table, speed_table
from bench.kv_segments.town_meeting import NEUTRAL_PREFIX
from hive.server.server_process import ServerDied
from tests.bench.kv_segments_server import HIDDEN, VOCABULARY, StandIn
from tests.bench.test_kv_segments_quality import Words

FIELDS = (
    *("workload", "arm", "corrector", "context", "ttft_ratio", "e2e_ratio", "reuse_rate"),
    *("tokens_recomputed", "kl_mean", "kl_first", "top1"),
)
SMALL = (
    *("--problems", "2", "--branches", "2", "--votes", "1", "--agents", "2", "--rounds", "2"),
    *("--answer-tokens", "3", "5", "--meetings", "1"),
)


@pytest.fixture
def url() -> Iterator[str]:
    """Of a stand-in with an event loop of its own: the command has one, too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = StandIn().server
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    yield server.url
    asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder, and what stands for its tokenizer and its output weights."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 3, "hidden_size": HIDDEN}))
    monkeypatch.setattr(bench, "RealText", lambda path: Words())
    monkeypatch.setattr(bench, "head_of", lambda path: torch.eye(VOCABULARY, HIDDEN))
    monkeypatch.setattr(bench, "on_cpu", lambda: True)
    return folder


def test_a_report(url: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "report.json"
    wanted = ("--correct", "none", "first-k", "--correctors", "none", "first-k", "recompute-all")
    running = ("--hive-url", url, "--stock-url", f"{url}/", "--model-path", str(model))
    arms = ("--arms", "choreographed", "baseline", "naive", "warm", "stock")
    bench.main(["--json", str(path), *SMALL, *wanted, *running, *arms])
    text = path.read_text()
    report = Report.model_validate_json(text)
    assert report.command.startswith("python -m bench.kv_segments --json report.json --problems 2")
    assert str(tmp_path) not in text
    assert "://" not in text
    assert (report.model, report.layers, report.hidden, report.dtype) == ("small", 3, HIDDEN, None)
    assert report.left_out == {}
    assert report.speed is not None
    assert (report.speed.tokens, report.speed.problems, report.speed.answer_tokens) == ("text", 2, (3, 5))
    assert (report.speed.system_tokens, report.speed.branches) == (None, 2)
    assert report.quality is not None
    assert (report.quality.rounds, report.quality.forced, report.quality.neutral_prefix) == (1, 50, None)
    speed = [row for row in report.rows if row.workload != "town_meeting"]
    assert [(row.arm, row.corrector) for row in speed] == 3 * [
        ("choreographed", "none"),
        ("choreographed", "first-k"),
        ("baseline", None),
        ("naive", None),
        ("warm", None),
        ("stock", None),
    ]
    assert [row.workload for row in speed[::6]] == ["tot", "parallel", "iterative"]
    assert all(row.ttft_ratio and row.e2e_ratio and row.kl_mean is None for row in speed)
    assert len(report.rows) == len(speed) + 2 + 3 * 3
    rows = json.loads(text)["rows"]
    assert all(tuple(row)[: len(FIELDS)] == FIELDS for row in rows)
    assert speed_table(report).row_count == len(speed)
    assert quality_table(report).row_count == len(report.rows) - len(speed)
    out = capsys.readouterr().out
    assert "Town meeting" in out
    assert (tmp_path / "deep" / "report-speed.png").stat().st_size > 1000
    assert (tmp_path / "deep" / "report-quality.png").stat().st_size > 1000


def test_random_tokens_need_no_tokenizer_and_say_nothing_of_quality(
    url: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "RealText", lambda path: pytest.fail("there is none"))
    path = tmp_path / "report.json"
    options = (
        "--random-tokens",
        "1000",
        "--system-tokens",
        "7",
        "--problem-tokens",
        "5",
        "--workloads",
        "tot",
    )
    bench.main(["--json", str(path), *SMALL, *options, "--hive-url", url, "--model-path", str(model)])
    report = Report.model_validate_json(path.read_text())
    assert report.left_out == {"quality": "it needs texts"}
    assert report.speed is not None
    assert (report.speed.tokens, report.speed.system_tokens, report.speed.problem_tokens) == ("random", 7, 5)
    assert {row.workload for row in report.rows} == {"tot"}


def test_what_was_measured_outlives_the_rest(url: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    options = ("--workloads", "tot", "--contexts", "neutral", "--minutes", "0.001")
    bench.main(["--json", str(path), *SMALL, *options, "--hive-url", url, "--model-path", str(model)])
    report = Report.model_validate_json(path.read_text())
    assert report.left_out == {"speed, last 1 of 2 problems": "there was no time"}
    assert {row.context for row in report.rows if row.arm == "segments"} == {"neutral"}


def test_servers_are_started_for_what_is_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], list[str], list[str]]] = []

    def started(kinds, model, flags, of_hive, on_cpu):  # type: ignore[no-untyped-def]
        asked.append((list(kinds), list(flags), list(of_hive)))
        raise ServerDied("the server ended with status 1")

    monkeypatch.setattr(bench, "started", started)
    common = ["--json", str(tmp_path / "report.json"), "--model-path", str(model)]
    for more in (
        ["--only", "speed", "--arms", "baseline", "stock", "--dtype", "bfloat16"],
        ["--only", "quality", "--arms", "stock", "--", "--schedule-policy", "lpm"],
    ):
        with pytest.raises(SystemExit, match="bench: the server ended"):
            bench.main([*common, *more])
    of_both = ["--hive-kv-segments", "--no-hive-logits-cache"]
    assert asked == [
        (["hive", "stock"], ["--dtype", "bfloat16"], of_both),
        (
            ["hive"],
            ["--dtype", "float32", "--schedule-policy", "lpm"],
            [*of_both, "--hive-kv-neutral-prefix", NEUTRAL_PREFIX, "--enable-return-hidden-states"],
        ),
    ]
    assert not (tmp_path / "report.json").exists()


def test_only_hive_gets_hives_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], list[str]]] = []

    @contextlib.contextmanager
    def one(kinds, model, flags, on_cpu):  # type: ignore[no-untyped-def]
        started.append((list(kinds), list(flags)))
        yield {kinds[0]: f"http://{kinds[0]}"}

    monkeypatch.setattr(servers.servers, "started", one)
    with servers.started(["hive", "stock"], Path("model"), ["--x"], ["--hive-y"], True) as urls:
        assert urls == {"hive": "http://hive", "stock": "http://stock"}
    assert started == [(["hive"], ["--x", "--hive-y"]), (["stock"], ["--x"])]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["--json", "."], "--json: . cannot be written: Is a directory\n"),
        (["--answer-tokens", "5", "3"], "--answer-tokens: the least is more than the most\n"),
        (["--agents", "4"], "--agents: there are 3\n"),
        (["--share", "0"], "--share must be above 0 and at most 1\n"),
        (["--meetings", "99"], "--meetings: there are texts for 6\n"),
        (
            ["--correct", "magic"],
            "--correct: magic is none of none, first-k, blend, blend-32, recompute-all\n",
        ),
        (["--correctors", "blend-16"], "blend-16 is none of none, first-k, blend, blend-32, recompute-all\n"),
        (["--arms", "naive"], "--arms: without the baseline there is nothing to compare with\n"),
        (["--only", "quality", "--random-tokens", "9"], "--random-tokens: quality needs texts\n"),
        (["--problems", "0"], "argument --problems: must be at least 1, not 0\n"),
    ],
)
def test_wrong_options_are_told_before_anything_is_started(
    wrong: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "started", lambda *_: pytest.fail("began"))
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--json", str(tmp_path / "report.json"), *wrong])
    assert capsys.readouterr().err.endswith(sentence)


def test_fields_that_do_not_apply_are_null() -> None:
    row = Row(workload="town_meeting", arm="dropped", **dict.fromkeys(FIELDS[2:]))
    assert list(row.model_dump())[: len(FIELDS)] == list(FIELDS)
    assert all(value is None for name, value in row.model_dump().items() if name not in ("workload", "arm"))
